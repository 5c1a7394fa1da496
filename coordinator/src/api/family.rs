//! Families of routes: each has an envelope and a set of error codes of its own. In: method and path of a request. Out: how its
//! troubles are answered, also when no handler was reached. Used by the handlers, the forwarder and the fallbacks.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};

use super::{errors::Problem, json::Node};

/// A family of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// PUT and DELETE of a resource.
    Change,
    /// GET of one resource.
    Read,
    /// GET of a change request.
    Poll,
    /// GET of a list.
    List,
    /// The command line.
    CommandLine,
    /// gRPC.
    Grpc,
    /// Everything else.
    Operator,
}

impl Family {
    /// The family that a request belongs to.
    pub fn of(method: &Method, path: &str, grpc: bool) -> Family {
        if grpc {
            return Family::Grpc;
        }
        let Some(rest) = path.strip_prefix("/api/v1/") else { return Family::Operator };
        let segments: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
        match (segments.as_slice(), method) {
            (["cli"], _) => Family::CommandLine,
            (["hosts" | "racks" | "instances" | "operations" | "events" | "catalogue" | "tokens", ..], _) => {
                Family::Operator
            }
            ([verb], &Method::POST) if verb.ends_with(":plan") => Family::Operator,
            ([_, _, "placement"], _) => Family::Operator,
            ([.., last], &Method::GET) if last.ends_with(":watch") => Family::Operator,
            (_, &Method::PUT | &Method::DELETE) => Family::Change,
            ([_, "get-by-labels"], _) => Family::List,
            ([_, "request", ..], _) => Family::Poll,
            _ => Family::Read,
        }
    }

    /// The error codes that its clients know.
    pub fn codes(self) -> &'static [&'static str] {
        match self {
            Family::Change => &[
                "NotFound",
                "Unauthorized",
                "MissingIdField",
                "ResourceIsScheduling",
                "MissingNameField",
                "Unknown",
                "ResourceIsDeleteProtected",
                "BadData",
            ],
            Family::Read => &["Unauthorized", "NotFound", "ResourceIsScheduling", "Unknown", "BadData"],
            Family::Poll => &["Unauthorized", "NotFound", "Unknown", "BadData", "UnableToReconcile"],
            Family::List => &["Unauthorized", "PageSizeTooBig", "EnumeratorNotFound", "Unknown", "BadData"],
            Family::CommandLine | Family::Grpc => &["Unauthorized", "NotFound", "Unknown", "BadData"],
            // With what a PUT is refused with: a plan says the same.
            Family::Operator => &[
                "Unauthorized",
                "NotFound",
                "Unknown",
                "BadData",
                "MissingIdField",
                "MissingNameField",
                "ResourceIsScheduling",
            ],
        }
    }

    /// A trouble in this family's envelope.
    pub fn refuse(self, problem: &Problem) -> Response {
        let error = [
            ("errorMessage", Node::from(problem.message.as_str())),
            ("errorCode", Node::from(problem.code_in(self))),
        ];
        let status = problem.status();
        let mut response = match self {
            Family::Change => {
                envelope(status, [("requestId", Node::Null), ("resourceId", Node::Null)], error)
            }
            Family::Read => envelope(status, [("resource", Node::Null)], error),
            // The SDK insists on a boolean and a text here, also in an error.
            Family::Poll => envelope(
                status,
                [("succeeded", Node::Bool(false)), ("scheduledResourceId", Node::from(""))],
                error,
            ),
            Family::List => {
                envelope(status, [("pagination", no_page()), ("resources", Node::List(Vec::new()))], error)
            }
            Family::Operator => envelope(status, [], error),
            Family::CommandLine => super::cli::refuse(problem),
            Family::Grpc => problem.grpc().into_http(),
        };
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE && self != Family::Grpc {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// What `pagination` is on the last page.
pub fn no_page() -> Node {
    Node::object([("enumeratorId", Node::Null)])
}

/// Members of the answer, then `errorMessage` and `errorCode`.
pub fn envelope<const N: usize>(
    status: StatusCode,
    members: [(&str, Node); N],
    error: [(&str, Node); 2],
) -> Response {
    let members = members.into_iter().chain(error).map(|(name, value)| (name.to_owned(), value)).collect();
    json(status, &Node::Object(members))
}

/// Members of a good answer, then the two error members as null.
pub fn success<const N: usize>(members: [(&str, Node); N]) -> Response {
    envelope(StatusCode::OK, members, [("errorMessage", Node::Null), ("errorCode", Node::Null)])
}

/// A JSON answer that nobody caches.
pub fn json(status: StatusCode, body: &Node) -> Response {
    // A tree of ours always serialises.
    let text = serde_json::to_string(body).unwrap_or_default();
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_follows_from_method_and_path() {
        for (method, path, family) in [
            (Method::PUT, "/api/v1/vpc", Family::Change),
            (Method::DELETE, "/api/v1/vpc/x", Family::Change),
            (Method::GET, "/api/v1/vpc/x", Family::Read),
            (Method::GET, "/api/v1/nothing/x", Family::Read),
            (Method::GET, "/api/v1/vpc/get-by-labels", Family::List),
            (Method::GET, "/api/v1/vpc/request/x", Family::Poll),
            (Method::POST, "/api/v1/cli", Family::CommandLine),
            (Method::GET, "/api/v1/operations/x", Family::Operator),
            (Method::POST, "/api/v1/valkey:plan", Family::Operator),
            (Method::GET, "/api/v1/valkey/x:watch", Family::Operator),
            (Method::GET, "/api/v1/valkey:watch", Family::Operator),
            (Method::GET, "/api/v1/racks/r:plan", Family::Operator),
            (Method::GET, "/api/v1/valkey/x/placement", Family::Operator),
            (Method::GET, "/", Family::Operator),
        ] {
            assert_eq!(Family::of(&method, path, false), family, "{method} {path}");
        }
    }
}
