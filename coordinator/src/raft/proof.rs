//! How members know each other. In: a message and the key derived from the cluster key. Out: an HMAC over method, callee,
//! nonce and payload, and one over each answer that binds it to its question. A message that was seen and sent again is
//! harmless: Raft expects duplicates, and node ids are never used twice. It proves, it does not hide: secrets and tokens
//! inside the log are sealed or hashed.

use shardplane_proto::v1::RaftMessage;

use super::wire::Method;
use crate::secrets::{ClusterKey, keyed_hash, new_mac, same};

/// The format number of messages between members.
pub(crate) const FORMAT: u32 = 1;

/// A message that is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Distrust {
    #[error("the sender does not hold this cluster's key")]
    Proof,
    #[error("the message is meant for another member: check the addresses of the members")]
    OtherMember,
    #[error("the message has format {0}, this program speaks {FORMAT}: upgrade one member after another")]
    Format(u32),
}

/// Signs and checks messages between members.
#[derive(Clone)]
pub(crate) struct Prover {
    key: [u8; 32],
}

/// Signs or checks the pieces of a snapshot.
pub(crate) struct StreamProof(hmac::Hmac<sha2::Sha256>);

impl Prover {
    pub(crate) fn new(key: &ClusterKey) -> Self {
        Self { key: key.derive("shardplane members v1") }
    }

    fn of_request(&self, method: Method, message: &RaftMessage) -> [u8; 32] {
        let (name, to) = (method.name(), message.to.to_be_bytes());
        keyed_hash(&self.key, &[b"request", name.as_bytes(), &to, &message.nonce, &message.payload])
    }

    fn of_answer(&self, method: Method, question: &[u8], payload: &[u8]) -> [u8; 32] {
        keyed_hash(&self.key, &[b"answer", method.name().as_bytes(), question, payload])
    }

    /// A signed question to member `to`; 0 is whoever answers at the address.
    pub(crate) fn ask(&self, method: Method, to: u64, payload: Vec<u8>) -> RaftMessage {
        let nonce = rand::random::<[u8; 16]>().to_vec();
        let mut message = RaftMessage { payload, format: FORMAT, to, nonce, proof: Vec::new() };
        message.proof = self.of_request(method, &message).to_vec();
        message
    }

    /// Checks a question that came to member `me`.
    pub(crate) fn check(&self, method: Method, me: u64, question: &RaftMessage) -> Result<(), Distrust> {
        if !same(&question.proof, &self.of_request(method, question)) {
            return Err(Distrust::Proof);
        }
        if question.format != FORMAT {
            return Err(Distrust::Format(question.format));
        }
        if question.to != me && !(question.to == 0 && method.goes_to_an_address()) {
            return Err(Distrust::OtherMember);
        }
        Ok(())
    }

    /// A signed answer to the question with this proof.
    pub(crate) fn answer(&self, method: Method, question: &[u8], payload: Vec<u8>) -> RaftMessage {
        let proof = self.of_answer(method, question, &payload).to_vec();
        RaftMessage { payload, format: FORMAT, to: 0, nonce: Vec::new(), proof }
    }

    /// Checks an answer to the question with this proof.
    pub(crate) fn check_answer(
        &self,
        method: Method,
        question: &[u8],
        answer: &RaftMessage,
    ) -> Result<(), Distrust> {
        if !same(&answer.proof, &self.of_answer(method, question, &answer.payload)) {
            return Err(Distrust::Proof);
        }
        if answer.format != FORMAT {
            return Err(Distrust::Format(answer.format));
        }
        Ok(())
    }

    /// The proof of a stream that began with this header.
    pub(crate) fn stream(&self, header: &RaftMessage) -> StreamProof {
        use hmac::Mac as _;
        let mut mac = new_mac(&self.key);
        mac.update(b"stream");
        mac.update(&header.proof);
        StreamProof(mac)
    }
}

impl StreamProof {
    pub(crate) fn add(&mut self, data: &[u8]) {
        use hmac::Mac as _;
        self.0.update(data);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        use hmac::Mac as _;
        self.0.finalize().into_bytes().to_vec()
    }

    pub(crate) fn check(self, proof: &[u8]) -> Result<(), Distrust> {
        if same(&self.finish(), proof) { Ok(()) } else { Err(Distrust::Proof) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prover(byte: u8) -> Prover {
        Prover::new(&ClusterKey::for_tests(byte))
    }

    #[test]
    fn a_question_is_believed_for_its_method_callee_and_key_only() {
        let ours = prover(1);
        let question = ours.ask(Method::Vote, 7, b"payload".to_vec());
        assert_eq!(ours.check(Method::Vote, 7, &question), Ok(()));
        assert_eq!(ours.check(Method::AppendEntries, 7, &question), Err(Distrust::Proof));
        assert_eq!(ours.check(Method::Vote, 8, &question), Err(Distrust::OtherMember));
        assert_eq!(prover(2).check(Method::Vote, 7, &question), Err(Distrust::Proof));
        let changed = RaftMessage { payload: b"Payload".to_vec(), ..question };
        assert_eq!(ours.check(Method::Vote, 7, &changed), Err(Distrust::Proof));
        let to_anybody = ours.ask(Method::Vote, 0, Vec::new());
        assert_eq!(ours.check(Method::Vote, 7, &to_anybody), Err(Distrust::OtherMember));
        let probe = ours.ask(Method::Probe, 0, Vec::new());
        assert_eq!(ours.check(Method::Probe, 7, &probe), Ok(()));
    }

    #[test]
    fn an_answer_is_believed_for_its_question_only() {
        let ours = prover(1);
        let (first, second) = (ours.ask(Method::Vote, 7, vec![1]), ours.ask(Method::Vote, 7, vec![1]));
        let answer = ours.answer(Method::Vote, &first.proof, b"granted".to_vec());
        assert_eq!(ours.check_answer(Method::Vote, &first.proof, &answer), Ok(()));
        assert_eq!(ours.check_answer(Method::Vote, &second.proof, &answer), Err(Distrust::Proof));
    }
}
