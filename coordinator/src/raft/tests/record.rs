//! Records of format 1, as the first version wrote them, stay readable.

use super::*;

const ENTRIES: &str = include_str!("golden/entries-1.jsonl");

#[test]
fn entries_of_format_1_are_read_and_written_alike() {
    let lines: Vec<&str> = ENTRIES.lines().collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let entry = LogEntry::from(decode::<EntryRecord<'_>>(line.as_bytes()).unwrap());
        assert_eq!(String::from_utf8(encode(&EntryRecord::from(&entry)).unwrap()).unwrap(), line);
    }
}

#[test]
fn facts_of_format_1_are_read() {
    let vote =
        decode::<VoteRecord>(br#"{"format":1,"record":{"term":7,"leader":3,"committed":true}}"#).unwrap();
    assert_eq!(Vote::from(vote), Vote::new_committed(7, 3));
    let position = decode::<Position>(br#"{"format":1,"record":{"term":7,"leader":3,"index":42}}"#).unwrap();
    assert_eq!(LogId::from(position).index, 42);
}

#[test]
fn a_newer_format_is_refused_by_its_number_whatever_is_in_it() {
    let error = decode::<VoteRecord>(br#"{"format":2,"record":"who knows"}"#).unwrap_err();
    assert!(matches!(error, RecordError::Newer { found: 2 }), "{error}");
    assert!(matches!(decode::<VoteRecord>(b"{}").unwrap_err(), RecordError::Malformed(_)));
}

/// Only before the first release: afterwards a file of format 1 never changes.
#[test]
#[ignore = "writes the golden file anew"]
fn write_golden() {
    let at = |index| LogId::new(CommittedLeaderId::new(7, 3), index);
    let voters = vec![BTreeSet::from([1, 2, 3])];
    let nodes: BTreeMap<u64, BasicNode> =
        (1..=3).map(|id| (id, BasicNode::new(format!("10.0.0.{id}:7710")))).collect();
    let commands = Entry {
        at: shardplane_model::command::Timestamp(1_764_000_000_250),
        commands: vec![crate::raft::tests::add_token(7)],
    };
    let payloads = [
        EntryPayload::Membership(Membership::new(voters, nodes)),
        EntryPayload::Blank,
        EntryPayload::Normal(commands),
    ];
    let lines = payloads.into_iter().zip(40..).map(|(payload, index)| {
        let entry = LogEntry { log_id: at(index), payload };
        String::from_utf8(encode(&EntryRecord::from(&entry)).unwrap()).unwrap() + "\n"
    });
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/raft/tests/golden/entries-1.jsonl");
    std::fs::write(path, lines.collect::<String>()).unwrap();
}
