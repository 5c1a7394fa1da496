//! Why a request is not answered with what it asked for, once for both protocols. In: refusals of the model and troubles of the
//! API itself. Out: HTTP status and `errorCode`, or a gRPC status. Used by every handler.

use http::StatusCode;
use shardplane_model::refusal::{Refusal, RefusalCode, Violation};
use shardplane_proto::causes::with_causes;

use super::{family::Family, json::MalformedBody, store::Unavailable};

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The model refused the change.
    Refused(RefusalCode),
    /// No token, or one that is not known.
    Unauthenticated,
    /// The token lacks a scope.
    Forbidden,
    /// `maxPageSize` is above the limit.
    PageSizeTooBig,
    /// `enumeratorId` does not belong to this list.
    EnumeratorNotFound,
    /// The accepted change cannot be carried out.
    UnableToReconcile,
    /// No leader or no quorum; trying again is safe.
    Unavailable,
    /// The connection to the leader broke after the request was sent, and trying again would not be safe.
    Uncertain,
    /// A bug of ours.
    Internal,
}

/// A trouble with its text for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// What kind.
    pub trouble: Trouble,
    /// What happened, to what, what to do next.
    pub message: String,
    /// The broken rules that `message` lists, when that is the reason.
    pub violations: Vec<Violation>,
}

impl Problem {
    /// A problem with this text.
    pub fn new(trouble: Trouble, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into(), violations: Vec::new() }
    }

    /// The request breaks a rule.
    pub fn bad_data(message: impl Into<String>) -> Self {
        Self::new(Trouble::Refused(RefusalCode::BadData), message)
    }

    /// What it names does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Trouble::Refused(RefusalCode::NotFound), message)
    }

    /// The HTTP status. Clients know 200, 400, 401, 403, 409, 422 and retry 5xx.
    pub fn status(&self) -> StatusCode {
        match self.trouble {
            Trouble::Refused(code) => match code {
                RefusalCode::NotFound | RefusalCode::ResourceIsDeleteProtected => {
                    StatusCode::UNPROCESSABLE_ENTITY
                }
                RefusalCode::MissingIdField | RefusalCode::MissingNameField | RefusalCode::BadData => {
                    StatusCode::BAD_REQUEST
                }
                RefusalCode::ResourceIsScheduling => StatusCode::CONFLICT,
                RefusalCode::Outdated => StatusCode::SERVICE_UNAVAILABLE,
            },
            Trouble::Unauthenticated => StatusCode::UNAUTHORIZED,
            Trouble::Forbidden => StatusCode::FORBIDDEN,
            Trouble::PageSizeTooBig => StatusCode::BAD_REQUEST,
            Trouble::EnumeratorNotFound | Trouble::Uncertain => StatusCode::UNPROCESSABLE_ENTITY,
            // The poll itself worked; clients read the outcome from the body.
            Trouble::UnableToReconcile => StatusCode::OK,
            Trouble::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Trouble::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The `errorCode`, before it is limited to what the route may answer.
    pub fn code(&self) -> &'static str {
        match self.trouble {
            Trouble::Refused(code) => match code {
                RefusalCode::NotFound => "NotFound",
                RefusalCode::MissingIdField => "MissingIdField",
                RefusalCode::MissingNameField => "MissingNameField",
                RefusalCode::ResourceIsScheduling => "ResourceIsScheduling",
                RefusalCode::ResourceIsDeleteProtected => "ResourceIsDeleteProtected",
                RefusalCode::BadData => "BadData",
                RefusalCode::Outdated => "Unknown",
            },
            Trouble::Unauthenticated | Trouble::Forbidden => "Unauthorized",
            Trouble::PageSizeTooBig => "PageSizeTooBig",
            Trouble::EnumeratorNotFound => "EnumeratorNotFound",
            Trouble::UnableToReconcile => "UnableToReconcile",
            Trouble::Unavailable | Trouble::Uncertain | Trouble::Internal => "Unknown",
        }
    }

    /// The `errorCode` on a route of this family: clients refuse names that are not in the family's set.
    pub fn code_in(&self, family: Family) -> &'static str {
        let code = self.code();
        if family.codes().contains(&code) {
            code
        } else if self.status().is_client_error() {
            "BadData"
        } else {
            "Unknown"
        }
    }

    /// As a gRPC status, with the `errorCode` in the metadata entry `error-code`.
    pub fn grpc(&self) -> tonic::Status {
        use tonic::Code;
        let code = match self.trouble {
            Trouble::Refused(code) => match code {
                RefusalCode::NotFound => Code::NotFound,
                RefusalCode::MissingIdField | RefusalCode::MissingNameField | RefusalCode::BadData => {
                    Code::InvalidArgument
                }
                RefusalCode::ResourceIsScheduling => Code::Aborted,
                RefusalCode::ResourceIsDeleteProtected => Code::FailedPrecondition,
                RefusalCode::Outdated => Code::Unavailable,
            },
            Trouble::Unauthenticated => Code::Unauthenticated,
            Trouble::Forbidden => Code::PermissionDenied,
            Trouble::PageSizeTooBig | Trouble::EnumeratorNotFound => Code::InvalidArgument,
            Trouble::UnableToReconcile => Code::FailedPrecondition,
            Trouble::Unavailable => Code::Unavailable,
            Trouble::Uncertain => Code::Unknown,
            Trouble::Internal => Code::Internal,
        };
        let mut status = tonic::Status::new(code, self.message.clone());
        if let Ok(value) = self.code().parse() {
            status.metadata_mut().insert("error-code", value);
        }
        status
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, message, violations } = refusal;
        Self { trouble: Trouble::Refused(code), message, violations }
    }
}

impl From<Unavailable> for Problem {
    fn from(cause: Unavailable) -> Self {
        Self::new(
            Trouble::Unavailable,
            format!("the coordinator cannot answer right now, try again in a second: {cause}"),
        )
    }
}

impl From<MalformedBody> for Problem {
    fn from(body: MalformedBody) -> Self {
        Self::bad_data(with_causes(&body))
    }
}

impl From<Problem> for tonic::Status {
    fn from(problem: Problem) -> Self {
        problem.grpc()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_the_route_does_not_know_becomes_one_that_it_knows() {
        let missing = Problem::not_found("no type x");
        assert_eq!((missing.status().as_u16(), missing.code_in(Family::Read)), (422, "NotFound"));
        assert_eq!(missing.code_in(Family::List), "BadData");
        let down = Problem::from(Unavailable("no leader".to_owned()));
        assert_eq!((down.status().as_u16(), down.code_in(Family::Change)), (503, "Unknown"));
        assert_eq!(down.grpc().code(), tonic::Code::Unavailable);
    }

    #[test]
    fn every_code_of_ours_is_in_the_set_of_a_family() {
        for trouble in [Trouble::Unauthenticated, Trouble::Forbidden, Trouble::Unavailable, Trouble::Internal]
        {
            for family in [Family::Change, Family::Read, Family::Poll, Family::List] {
                let problem = Problem::new(trouble, "x");
                assert_eq!(problem.code_in(family), problem.code(), "{trouble:?} {family:?}");
            }
        }
    }
}
