//! The text of `kc help`.

/// What `kc` can do.
pub const TEXT: &str = "\
kc: the command line of Shardplane

Read
  kc get <type>[,<type>] [name…]      list, or show by name or id (also: ls, list; kc <type> ls)
  kc get all | network-all            every type, or every type of a product
  kc describe <type> <name>           everything about one: status, instances, operations, events
  kc api-resources                    the types and their short names
  kc get <type> [name…] -w            the table, and then each row that changes, until Ctrl-C
  kc wait <type> <name> --for stable|ok|deleted|condition=NAME[=True] [--timeout 5m]
  kc get host|capacity|instance|operation|event|catalogue|token [name]     for operators
  kc events [--for cluster/NAME|host/NAME] [-w]     what happened
  kc describe operation <id>          its steps; kc wait operation <id>: until it has succeeded
  kc explain placement <cluster>      why each instance is where it is
  kc plan -f <file|->                 what apply would lead to: instances, spread, what travels, pauses; changes nothing
  kc plan drain|loss <host>           where its instances would go, and what would be wrong then
  kc plan loss rack <name>            the same for all hosts of a rack

Change
  kc apply -f <file|->                create or update what a manifest describes
  kc edit <type> <name>               change it in your editor ($KC_EDITOR, $EDITOR)
  kc delete <type> <name>…            delete it (also: rm, remove); or everything in a manifest: -f <file|->
  kc cordon <host> [--for 2h] [--reason <text>]     give it no new instances
  kc uncordon <host>                  open it again; ends a drain
  kc cancel operation <id>            end a change: a shard or replica that is added and owns nothing goes, what else was done stays
  kc drain <host> [--force] [--reason <text>]       move everything away; again: how far that is
  kc delete host <name>…              a host that is lost and never returns: forget it
  kc delete token <name>…             take a token back

Client
  kc login | logout                   check the token; forget it
  kc config view | get-contexts | use-context <name> | set-server <url> | set-token <token>
  kc version | help

Flags
  -n, --folder <name|id>              in this folder
  -A, --all-folders                   in every folder (which is also what happens without -n)
  -o, --output table|wide|json|yaml   how to show it; yaml is what apply reads
  -q, --quiet                         ids only
  -f, --filename <file|->             the manifest; - is standard input
      --for 90s|30m|2h|1d             the cordon ends by itself after that
      --force                         a drain may break the spread, and moves a shard's only copy, too
  -w, --wait                          with apply and delete: until the change is carried out; with get: what changes
      --timeout 90s|5m|2h             kc wait gives up then, with exit code 1; 5m when it is not given

In a manifest, folderId, vpcId, vpcSubnetId, parametersSetId and hostingProviderId take names too. Without metadata.id, apply
looks for a resource of that kind and name in the folder: none is created, one is updated, several ask for the id.
";
