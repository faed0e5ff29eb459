//! The layers before all routes: keys, and origins of web pages.

use axum::{Router, routing::get};
use turbo_serve::{
    engine::Health,
    net::{allow_origins, protect},
};

use crate::{
    fake::{Fake, Reply, Running, assert_tei, routes},
    statuses::assert_openai,
};

const BODY: &str = r#"{"inputs":"a","input":"a"}"#;

fn start(guard: impl FnOnce(Router) -> Router) -> Running {
    Running::start(guard(routes(Fake::new(Health::Ready).into())))
}

fn post(server: &Running, path: &str, header: (&str, &str)) -> Reply {
    server.send("POST", path, &[("content-type", "application/json"), header], BODY)
}

#[test]
fn only_who_has_the_key_is_answered() {
    let server = start(|router| protect(router, "secret".parse().unwrap()));
    for path in ["/embed", "/", "/v1/embeddings"] {
        for shown in ["Bearer secret", "bearer secret"] {
            assert_eq!(post(&server, path, ("authorization", shown)).status, 200, "{path}, {shown}");
        }
    }
    for (shown, said) in [
        (("x-key", "secret"), "expected the header `Authorization: Bearer KEY`"),
        (("authorization", "Bearer secre"), "not this server's"),
        (("authorization", "secret"), "not this server's"),
    ] {
        for path in ["/embed", "/", "/nowhere", "/info/"] {
            let reply = post(&server, path, shown);
            assert_tei(path, &reply, 401, "Unauthorized", said);
            assert_eq!(reply.header("www-authenticate"), "Bearer");
        }
        assert_openai("OpenAI", &post(&server, "/v1/embeddings", shown), 401, "Unauthorized", said);
    }
    assert_tei("info", &server.get("/info"), 401, "Unauthorized", "expected the header");
    let infer = post(&server, "/v2/models/fake/infer", ("x-key", "secret"));
    assert_eq!(infer.status, 401);
    assert!(infer.json()["error"].as_str().unwrap().starts_with("expected the header"));
    let of_kserve = ["/v2/health/live", "/v2/health/ready"];
    for path in ["/", "/health", "/ping", "/metrics", "/docs", "/openapi.json"].into_iter().chain(of_kserve) {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for model in ["/models/org%2Fa", "/models/org/a", "/models/a/versions/1", "/models/org/a/versions/1"] {
        for path in ["/health", "/ping", "/metrics"] {
            assert_eq!(server.get(&format!("{model}{path}")).status, 200, "{model}{path}");
        }
        for path in ["/info", "/health/embed", "/health/"] {
            let path = format!("{model}{path}");
            assert_tei(&path, &server.get(&path), 401, "Unauthorized", "expected the header");
        }
        assert_eq!(server.get(&format!("{model}/v1/models/a/health")).status, 401, "{model}: a model's name");
        let path = format!("{model}/health");
        assert_eq!(post(&server, &path, ("x-key", "secret")).status, 401, "{path}: asked to do something");
    }
    for path in ["/models/a", "/models/org%2Fa", "/models/a/versions/1", "/models/org/a/versions/1"] {
        assert_eq!(server.get(path).status, 200, "{path}: health, as at the root");
        assert_eq!(post(&server, path, ("x-key", "secret")).status, 401, "{path}: asked to do something");
    }
    for path in ["/versions/1/health", "/models/versions/health/info"] {
        assert_tei(path, &server.get(path), 401, "Unauthorized", "expected the header");
    }
    let headers = [("content-type", "application/json"), ("x-request-id", "mine")];
    let named = server.send("POST", "/embed", &headers, BODY);
    assert_eq!((named.status, named.header("x-request-id")), (401, "mine"));
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains(r#"te_request_failure{err="unauthorized"}"#), "{}", metrics.text());
}

#[test]
fn routes_of_ones_own_need_the_key() {
    let own = || get(async || "mine");
    let beside = Router::new().route("/models/mine", own()).route("/models/mine/health", own());
    let server =
        start(|router| protect(beside.route("/mine", own()).merge(router), "secret".parse().unwrap()));
    for path in ["/mine", "/models/mine", "/models/mine/health"] {
        assert_eq!(server.get(path).status, 401, "{path}");
        let shown = server.send("GET", path, &[("authorization", "Bearer secret")], "");
        assert_eq!((shown.status, shown.text()), (200, "mine"), "{path}");
    }
    for path in ["/models/other", "/models/other/health", "/models/org/mine/health"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_page_may_ask_when_its_origin_is_allowed() {
    let (ours, other) = (("origin", "https://ours.example"), ("origin", "https://other.example"));
    let allowed = |reply: &Reply| {
        let header = reply.headers.get("access-control-allow-origin");
        header.map(|value| value.to_str().unwrap().to_owned())
    };
    let origins = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();

    let server = start(|router| allow_origins(router, &origins(&["https://ours.example", "null"])));
    assert_eq!(allowed(&post(&server, "/embed", ours)).as_deref(), Some("https://ours.example"));
    assert_eq!(allowed(&post(&server, "/embed", ("origin", "null"))).as_deref(), Some("null"));
    let reply = post(&server, "/embed", other);
    assert_eq!((reply.status, allowed(&reply)), (403, None), "the browser keeps it from the page");

    let server = start(|router| allow_origins(router, &origins(&["https://ours.example", "*"])));
    assert_eq!(allowed(&post(&server, "/embed", other)).as_deref(), Some("*"));
}

#[test]
fn pages_from_elsewhere_have_nothing_done() {
    let ours = "https://ours.example".parse().unwrap();
    let server = start(|router| allow_origins(router, &[ours]));
    let other = ("origin", "https://other.example");
    let said = "web pages of `https://other.example` may not send requests";
    assert_tei("/embed", &post(&server, "/embed", other), 403, "Forbidden", said);
    assert_openai("OpenAI", &post(&server, "/v1/embeddings", other), 403, "Forbidden", said);
    let unload = post(&server, "/v2/repository/models/fake/unload", other);
    assert_eq!(unload.status, 403);
    assert!(unload.json()["error"].as_str().unwrap().contains(said), "{}", unload.text());
    let call = server.send("POST", "/tei.v1.Embed/Embed", &[("content-type", "application/grpc"), other], "");
    assert_eq!(call.header("grpc-status"), "7", "permission denied");
    for method in ["GET", "HEAD"] {
        assert_eq!(
            server.send(method, "/info", &[other], "").status,
            200,
            "nothing is done, and nothing shown"
        );
    }
    for nobody in ["null", "http://127.0.0.1:1", "http://ours.example"] {
        assert_eq!(post(&server, "/embed", ("origin", nobody)).status, 403, "{nobody}");
    }
    for own in [format!("http://{}", server.address), format!("https://{}", server.address)] {
        assert_eq!(post(&server, "/embed", ("origin", &own)).status, 200, "{own}, maybe behind a proxy");
    }
    assert_eq!(post(&server, "/embed", ("x-origin", "none")).status, 200, "no browser");
}

#[test]
fn a_browser_may_ask_before_it_shows_a_key() {
    let server =
        start(|router| allow_origins(protect(router, "secret".parse().unwrap()), &["*".parse().unwrap()]));
    let asks = [
        ("origin", "https://any.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let reply = server.send("OPTIONS", "/embed", &asks, "");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-origin"), "*");
    assert_eq!(reply.header("access-control-allow-headers"), "authorization,content-type");
    assert_eq!(reply.header("access-control-allow-methods"), "GET,POST");
    let refused = post(&server, "/embed", asks[0]);
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, "*"));
}
