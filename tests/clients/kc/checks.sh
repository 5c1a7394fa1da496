# The checks of a kc. In: a name and a program. Out: a line a check, counted in $passed and $failed. Sourced by run.

passed=0 failed=0
offer=${VM_OFFER:-g3-1c1-20} volume=${VOLUME_OFFER:-gp3-750}

verdict() { # good? name detail
  if (($1 == 0)); then
    passed=$((passed + 1))
    echo "ok    $2"
  else
    failed=$((failed + 1))
    echo "FAIL  $2: $3"
  fi
}

# Runs kc with what $typed holds as its standard input; out, err and rc are set. $bare keeps the settings of the environment away.
run() {
  rc=0
  env ${bare:+-u KC_API_URL -u KC_TOKEN} HOME="$home" "$kc" "$@" >"$scratch/out" 2>"$scratch/err" <<<"${typed:-}" || rc=$?
  out=$(cat "$scratch/out") err=$(cat "$scratch/err")
}

# name, wanted rc, a pattern (extended) for out and err together, then the arguments
says() {
  local name=$1 wanted=$2 pattern=$3 good=0
  shift 3
  run "$@"
  [[ $rc == "$wanted" ]] && grep -qE -- "$pattern" <<<"$out"$'\n'"$err" || good=1
  verdict $good "$who: $name" "kc $* ended with $rc, wanted $wanted and /$pattern/: $out $err"
}

# The manifest of a network by names, several documents in one file; a name of its own for each client.
network() {
  cat <<YAML
# A folder, and in it a network.
apiVersion: v1
kind: Folder
metadata:
  name: $tag
---
apiVersion: v1
kind: vpc
metadata: {name: $tag-net, folderId: $tag, labels: {team: "$tag"}}
---
{"apiVersion": "v1", "kind": "VpcSubnet", "metadata": {"name": "$tag-subnet", "folderId": "$tag"}, "spec": {"vpcId": "$tag-net", "ipv4Cidr": "10.81.0.0/24"}}
---
kind: valkey-parameters-set
metadata: {name: $tag-profile, folderId: $tag}
spec: {parameters: {maxmemory-policy: allkeys-lru, hz: "20"}}
YAML
}

cluster() { # name version
  cat <<YAML
apiVersion: v1
kind: Valkey
metadata: {name: $1, folderId: $tag}
spec:
  shards: [{id: $(tag=$1 ulid 1), vpcSubnetId: $tag-subnet}]
  replicasPerShard: 1
  rootPassword: "needle: 'q' é"
  parametersSetId: $tag-profile
  valkeyVersion: "$2"
  vmOfferId: $offer
  volumeOfferId: $volume
  volumeSizeGiB: 1
YAML
}

# A ULID of this run; the number keeps several apart.
ulid() {
  printf '01%s%s\n' "$(printf %s "$tag-$1" | sha256sum | tr -d 'i-zI-Z' | cut -c1-23)" "$1"
}

suite() { # who program
  who=$1 kc=$2 home=$scratch/home-$1 tag=kc-$1-$$
  mkdir -p "$home"
  basics
  apply
  reading
  names
  editing
  clusters
  profiles
  clean
}

basics() {
  says "version" 0 '^kc ' version
  says "help" 0 'apply -f' help
  says "no arguments are help" 0 'apply -f'
  says "api-resources" 0 'valkey-parameters-set.*vk-paramset' api-resources
  says "an unknown command" 1 'frobnicate' frobnicate
  says "an unknown flag" 1 '--nope' get vpc --nope
  says "an unknown type" 1 'nothing' get nothing
  says "an unknown format" 1 'xml' get vpc -o xml
  says "login says whose token it is" 0 'valid' login
  says "the catalogue" 0 "$offer" get catalogue
  says "hosts" 0 'Ready' get host
  says "tokens, without their secrets" 0 'operator' get token
}

apply() {
  network >"$scratch/network.yaml"
  says "apply of several documents, with names for ids" 0 "VpcSubnet/$tag-subnet applied" apply -f "$scratch/network.yaml"
  says "apply again changes nothing" 0 "Vpc/$tag-net applied \(nothing changed\)" apply -f "$scratch/network.yaml"
  typed=$(network) says "apply from standard input, waiting" 0 'applied' apply -f - -w
  says "apply without a file" 1 'which file' apply
  says "a file that is not there" 1 'cannot read|No such file|no such file' apply -f "$scratch/none.yaml"
  for broken in 'kind: Nothing' 'metadata: {name: x}' '{' '- 1' 'kind: Folder' '' "kind: Vpc
metadata: {name: x, folderId: no-such-folder}" "kind: Folder
metadata: {name: x, colour: red}"; do
    printf '%s\n' "$broken" >"$scratch/broken.yaml"
    says "a manifest that is $(head -1 <<<"$broken" | cut -c1-30)…" 1 'error: .' apply -f "$scratch/broken.yaml"
  done
}

reading() {
  local id
  says "get lists" 0 "NAME +ID +STATE" get vpc -n "$tag"
  says "ls, and the type first" 0 "$tag-net" vpc ls
  says "wide has more columns" 0 'PROVIDER' get vpc -o wide
  says "json of a list" 0 '"items"' get vpc -n "$tag" -o json
  says "json of one" 0 '"kind": "Vpc"' get vpc "$tag-net" -o json
  says "yaml" 0 "name: $tag-net" get vpc "$tag-net" -o yaml
  for word in valkey-parameters-set valkeyparametersset ValkeyParametersSet valkey-paramset vk-paramset; do
    says "the type by $word" 0 "$tag-profile" get "$word" -n "$tag"
  done
  for word in subnet vpc-subnet vpcsubnet VpcSubnet; do
    says "the type by $word" 0 "$tag-subnet" get "$word"
  done
  says "folders" 0 "$tag" get folders
  run get vpc "$tag-net" -q
  id=$out
  verdict "$([[ $rc == 0 && $id =~ ^[0-9a-z]{26}$ ]]; echo $?)" "$who: -q prints the id alone, in lower case" "$out $err"
  says "one by its id" 0 "$tag-net" get vpc "$id"
  says "one by its id in upper case" 0 "$tag-net" get vpc "${id^^}"
  says "-A" 0 "$tag-net" get vpc -A
  says "a folder that is not there" 1 'there is no Folder' get vpc "$tag-net" -n no-such
  says "describe" 0 "$id" describe vpc "$tag-net"
  run get all -n "$tag" -o yaml
  printf '%s\n' "$out" >"$scratch/all.yaml"
  says "what get -o yaml shows can be applied" 0 'nothing changed' apply -f "$scratch/all.yaml"
}

names() {
  printf 'kind: Vpc\nmetadata: {name: %s-net, id: %s}\n' "$tag" "$(ulid 7)" >"$scratch/twin.yaml"
  says "a second one of that name, by its id" 0 'applied' apply -f "$scratch/twin.yaml"
  says "an ambiguous name lists the matches" 1 "multiple.*|$(ulid 7)" get vpc "$tag-net"
  says "delete by an ambiguous name is refused" 1 "$(ulid 7)" delete vpc "$tag-net"
  says "the folder tells them apart" 0 "$tag-net" get vpc "$tag-net" -n "$tag"
  says "delete by id" 0 'deleted' delete vpc "$(ulid 7)" -w
  says "delete of what is not there" 1 'there is no Vpc' rm vpc "$tag-none"
  says "delete of what is in use" 1 "$tag" delete folder "$tag"
}

editing() {
  printf '#!/bin/sh\nsed -i "s/hz: .*/hz: \\"30\\"/" "$1"\n' >"$scratch/editor"
  printf '#!/bin/sh\nif grep -q ERROR: "$1"; then sed -i "s/hz: .*/hz: \\"40\\"/" "$1"; else sed -i "s/hz: .*/hz: never/" "$1"; fi\n' >"$scratch/stubborn"
  chmod +x "$scratch/editor" "$scratch/stubborn"
  EDITOR=$scratch/editor KC_EDITOR=$scratch/editor says "edit" 0 'applied|edited' edit vk-paramset "$tag-profile"
  says "what was edited is there" 0 'hz: ["'\'']?30' get vk-paramset "$tag-profile" -o yaml
  EDITOR=$scratch/stubborn KC_EDITOR=$scratch/stubborn says "a mistake opens the editor again" 0 'applied|edited' edit vk-paramset "$tag-profile"
  says "what was edited again is there" 0 'hz: ["'\'']?40' get vk-paramset "$tag-profile" -o yaml
  EDITOR=true KC_EDITOR=true says "an edit without a change" 0 'no changes' edit vk-paramset "$tag-profile"
}

clusters() {
  cluster "$tag-vk" "$version" >"$scratch/cluster.yaml"
  says "apply -w of a cluster waits for it" 0 "Valkey/$tag-vk applied" apply -f "$scratch/cluster.yaml" -w
  says "its state" 0 "$tag-vk.*stable.*ok" get valkey "$tag-vk"
  says "the same again changes nothing" 0 'nothing changed' apply -f "$scratch/cluster.yaml"
  says "wide shows the version" 0 "$version" get vk "$tag-vk" -o wide
  for format in table wide yaml json; do
    run get valkey "$tag-vk" -o "$format"
    verdict "$([[ $rc == 0 && $out != *needle* ]]; echo $?)" "$who: -o $format does not show the password" "$out $err"
  done
  run get valkey "$tag-vk" -o yaml
  printf '%s\n' "$out" >"$scratch/shown.yaml"
  says "what is shown, without its password, can be applied" 0 'nothing changed' apply -f "$scratch/shown.yaml"
  sed 's/volumeSizeGiB: 1/volumeSizeGiB: 2/' "$scratch/cluster.yaml" >"$scratch/bigger.yaml"
  says "an update that is not possible" 1 'spec.volumeSizeGiB' apply -f "$scratch/bigger.yaml"
  says "instances" 0 "$tag-vk" get instance
  says "explain placement" 0 'host-|host' explain placement "$tag-vk"
  says "describe" 0 "$tag-vk" describe valkey "$tag-vk"
  cluster "$tag-old" 99.9.9 >"$scratch/old.yaml"
  says "a version that no image has fails with those there are" 1 "99.9.9.*$version" apply -f "$scratch/old.yaml" -w
  says "its state" 0 'schedulingfailed' get valkey "$tag-old"
  says "delete -w" 0 "Valkey/$tag-vk deleted" delete valkey "$tag-vk" -w
  says "it is gone" 1 'there is no Valkey' get valkey "$tag-vk"
  says "delete of the failed one" 0 "Valkey/$tag-old deleted" delete valkey "$tag-old" -w
}

# With a home of its own, and at last nothing in the environment.
profiles() {
  local home=$scratch/fresh-$who
  mkdir -p "$home"
  says "config set-server" 0 '' config set-server "$KC_API_URL"
  local bare=yes
  case $who in
    vendor) typed=$KC_TOKEN says "without a token, it is asked for" 0 "$tag" get folder ;;
    # Ours asks on a terminal only: standard input may be a manifest.
    ours)
      typed=$KC_TOKEN says "without a token and a terminal, it says what to do" 1 'config set-token' get folder
      says "config set-token" 0 '' config set-token "$KC_TOKEN"
      ;;
  esac
  says "and kept in the profile" 0 "$tag" get folder
  says "config view" 0 "$KC_API_URL" config view
  says "config get-contexts" 0 'default' config get-contexts
  bare='' KC_TOKEN=nonsense says "a token that is not known" 1 'auth|token' get folder
  says "config use-context" 0 '' config use-context default
  typed=y says "logout offers to forget the token" 0 '' logout
  says "which is then forgotten" 1 'auth|token' get folder
}

clean() {
  says "delete of all that was applied" 0 "Folder/$tag deleted" delete -f "$scratch/network.yaml" -w
  says "nothing is left" 1 'there is no Folder' get folder "$tag"
}
