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
  kc events [--for cluster/NAME|host/NAME] [-w]     what happened; -w: and what happens then, until Ctrl-C
  kc describe operation <id>          its steps; kc wait operation <id>: until it has succeeded
  kc explain placement <cluster>      why each instance is where it is
  kc plan -f <file|->                 what apply would lead to: instances, what they copy, spread, what travels, pauses; changes nothing
  kc plan drain <host> [--force]      where its instances would go, slots that change primary, memory that is copied, pauses, what
                                      would be blocked, and what would be wrong then
  kc plan loss <host>                 the same when it dies
  kc plan loss rack <name>            the same when all hosts of a rack die

Change
  kc apply -f <file|->                create or update what a manifest describes
  kc edit <type> <name>               change it in your editor ($KC_EDITOR, $EDITOR)
  kc delete <type> <name>…            delete it (also: rm, remove); or everything in a manifest: -f <file|->
  kc cordon <host> [--for 2h] [--reason <text>]     give it no new instances
  kc uncordon <host>                  open it again; ends a drain
  kc cancel operation <id>            end a change: a shard or replica that is added and owns nothing goes, and the spec is the one
                                      before; what else was done stays: the same manifest goes on, the one before goes back
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
      --for                           with cordon, 90s|30m|2h|1d: it ends by itself after that; with wait: what for; with events:
                                      what about
      --reason <text>                 with cordon and drain: why, for whoever looks at the host
      --force                         a drain may break the spread, and moves a shard's only copy, too; with plan drain: how that goes
  -w, --wait                          with apply and delete: until the change is carried out; with get and events: what changes,
                                      until Ctrl-C
      --timeout 90s|5m|2h             kc wait gives up then, with exit code 1; 5m when it is not given

In a manifest, folderId, vpcId, vpcSubnetId, parametersSetId, postgreSqlId, postgreSqlParametersSetId and hostingProviderId
take names too. Without metadata.id, apply looks for a resource of that kind and name in the folder: none is created, one is updated, several ask for the id.
";

#[cfg(test)]
mod tests {
    use super::{super::args, TEXT};

    fn parsed(words: &[&str]) -> Result<args::Args, String> {
        args::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_help_names_is_there() {
        for line in TEXT.lines().filter_map(|line| line.strip_prefix("  kc ")) {
            let first = line.split_whitespace().next().unwrap();
            parsed(&[first]).unwrap_or_else(|why| panic!("{line}: {why}"));
        }
        let names_a_flag = |word: &&str| word.starts_with("--");
        for word in TEXT.split(|c: char| !c.is_alphanumeric() && c != '-').filter(names_a_flag) {
            let known = parsed(&["get", word]).or_else(|_| parsed(&["get", word, "1s"]));
            known.or_else(|_| parsed(&["get", word, "json"])).unwrap_or_else(|why| panic!("{word}: {why}"));
        }
    }

    #[test]
    fn flags_say_what_they_mean_with_each_verb() {
        let about = |flag: &str| {
            let from = TEXT.split_once(&format!("\n{flag}")).unwrap().1;
            // Until the next flag, which is indented less than what is said about one.
            let own = |(number, line): &(usize, &str)| *number == 0 || line.starts_with(&" ".repeat(38));
            from.lines()
                .enumerate()
                .take_while(own)
                .map(|(_, line)| line.trim())
                .collect::<Vec<_>>()
                .join(" ")
        };
        for (flag, verbs) in [
            ("      --for ", &["cordon", "wait", "events"][..]),
            ("  -w, --wait", &["apply", "delete", "get", "events"]),
            ("      --force", &["drain", "plan drain"]),
            ("      --reason", &["cordon", "drain"]),
        ] {
            verbs.iter().for_each(|verb| assert!(about(flag).contains(verb), "{flag} {verb}"));
        }
    }
}
