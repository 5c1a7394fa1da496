# What the provider's users write: a network, a tuning profile, and the smallest cluster with failover.

terraform {
  required_providers {
    kvindo = { source = "kvindo/kvindo" }
  }
}

provider "kvindo" {}

variable "name" { type = string }
variable "valkey_version" { type = string }
variable "vm_offer" { type = string }
variable "volume_offer" { type = string }

variable "volume_size" {
  type    = number
  default = 1
}

variable "shards" {
  type    = number
  default = 3
}

variable "replicas" {
  type    = number
  default = 1
}

variable "description" {
  type    = string
  default = "made by terraform"
}

# With a value, a second cluster of that version is wanted.
variable "second_version" {
  type    = string
  default = ""
}

locals {
  # Ids of shards are the client's; the name keeps runs apart.
  shard_ids = [for n in range(4) : "01${substr(replace(sha256("${var.name}-${n}"), "/[^0-9a-f]/", ""), 0, 24)}"]
}

resource "kvindo_folder" "main" {
  metadata = { name = var.name, labels = { run = var.name } }
}

resource "kvindo_vpc" "main" {
  metadata = { name = var.name, folder_id = kvindo_folder.main.id }
  spec     = {}
}

resource "kvindo_vpc_subnet" "main" {
  metadata = { name = var.name, folder_id = kvindo_folder.main.id }
  spec     = { vpc_id = kvindo_vpc.main.id, ipv4_cidr = "10.91.0.0/24" }
}

resource "kvindo_valkey_parameters_set" "main" {
  metadata = { name = var.name, folder_id = kvindo_folder.main.id }
  spec     = { parameters = { maxmemory-policy = "allkeys-lru" } }
}

resource "kvindo_valkey" "main" {
  metadata = {
    name        = var.name
    description = var.description
    folder_id   = kvindo_folder.main.id
    labels      = { run = var.name }
  }
  spec = {
    shards             = [for id in slice(local.shard_ids, 0, var.shards) : { id = id, vpc_subnet_id = kvindo_vpc_subnet.main.id }]
    replicas_per_shard = var.replicas
    root_password      = "t3rraform: p@ss /?#%"
    parameters_set_id  = kvindo_valkey_parameters_set.main.id
    valkey_version     = var.valkey_version
    vm_offer_id        = var.vm_offer
    volume_offer_id    = var.volume_offer
    volume_size_gib    = var.volume_size
  }
}

resource "kvindo_valkey" "second" {
  count    = var.second_version == "" ? 0 : 1
  metadata = { name = "${var.name}-second", folder_id = kvindo_folder.main.id, labels = { run = var.name, part = "second" } }
  spec = {
    shards             = [{ id = local.shard_ids[3], vpc_subnet_id = kvindo_vpc_subnet.main.id }]
    replicas_per_shard = 0
    root_password      = "x"
    valkey_version     = var.second_version
    vm_offer_id        = var.vm_offer
    volume_offer_id    = var.volume_offer
    volume_size_gib    = 1
  }
}

output "cluster_state" { value = kvindo_valkey.main.status.cluster_state }
output "primaries" { value = length([for node in kvindo_valkey.main.status.nodes : node if node.is_primary]) }
