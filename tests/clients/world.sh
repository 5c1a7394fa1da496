# A coordinator for the client suites. In: KC_API_URL and KC_TOKEN of a world that exists, or nothing. Out: both, exported, of a world
# that is made here (deploy/world, 3 hosts) and removed when the caller ends. Sourced by the run files beside this one.
#
# KC_TOKEN is an admin token: the suites make tokens of fewer scopes themselves, and look at hosts and instances.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/shardplane-clients.XXXXXX")
world=''

leave() {
  local rc=$?
  trap - EXIT
  [[ -z $world ]] || "$repo/deploy/world" down --name "$world" || rc=1
  rm -rf "$scratch"
  exit "$rc"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Makes a world unless one is given.
world() { # name
  if [[ -n ${KC_API_URL:-} ]]; then
    : "${KC_TOKEN:?KC_API_URL is set, so KC_TOKEN must be an admin token of the same installation}"
  else
    world=sp-clients-$1
    "$repo/deploy/world" up --name "$world" --hosts 3 --coordinators 3 --owner $$
    # shellcheck source=/dev/null
    . "/run/$world/env"
  fi
  KC_API_URL=${KC_API_URL%/}
  export KC_API_URL KC_TOKEN
}

# One line that says what is missing, and the exit code for it.
missing() {
  echo "not run: $*"
  exit 77
}
