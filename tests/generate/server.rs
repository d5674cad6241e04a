//! The server under many clients, and under those that send what is wrong, too much, or too little.

use crate::support::language::{write_folder, write_folder_of_bytes};
use ipuc::compile::folder;
use ipuc::compile::{CompileOptions, compile};
use ipuc::generate::{Generator, GeneratorOptions, Limits, Sampling, TextModel};
use ipuc::serve::{ServeError, Server, ServerOptions};
use ipuc::{OpenOptions, open_with};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

fn model(folder: &Path) -> TextModel {
    write_folder(folder);
    compiled(folder)
}

fn compiled(folder: &Path) -> TextModel {
    let mut options = CompileOptions::default();
    let sources = folder::read(folder).unwrap().apply(&mut options);
    let path = folder.join("model.ipu");
    compile(&sources, &path, &options).unwrap();
    TextModel::new(open_with(&path, OpenOptions::default()).unwrap()).unwrap()
}

/// A server in a thread that ends with the tests.
fn started(model: &TextModel, options: ServerOptions) -> SocketAddr {
    let generator = GeneratorOptions { threads: 1, ..GeneratorOptions::default() };
    let options = ServerOptions { address: "127.0.0.1:0".to_string(), generator, ..options };
    let server = Server::bind(model, options).unwrap();
    let address = server.address();
    std::thread::spawn(move || server.run());
    address
}

/// Send bytes; gives the status and what follows the head.
fn exchange(address: SocketAddr, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let status = reply.split(' ').nth(1).unwrap_or_else(|| panic!("no reply: {reply:?}")).parse().unwrap();
    (status, reply.split_once("\r\n\r\n").unwrap().1.to_string())
}

fn post(address: SocketAddr, path: &str, body: &str) -> (u16, String) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    exchange(address, (head + body).as_bytes())
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    exchange(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
}

/// The objects of the events of a stream; the last event is `[DONE]`.
fn events(body: &str) -> Vec<Value> {
    let mut events: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{body}");
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

fn request(prompt: &str, stream: bool) -> String {
    json!({"model": "model", "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": stream}).to_string()
}

#[test]
fn a_text_is_that_of_the_library_at_once_and_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let address = started(&model, ServerOptions::default());
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let prompt = model.encode("w5 w6 w7").unwrap();
    let limits = Limits { tokens: Some(8), ..Limits::default() };
    let tokens = generator.generate(&prompt, &Sampling::greedy(), &limits).unwrap();
    let expected: String = tokens.map(|token| token.unwrap().text).collect();

    let (status, body) = post(address, "/v1/completions", &request("w5 w6 w7", false));
    let reply: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &reply["choices"][0]["text"]), (200, &json!(expected)), "{body}");
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");

    let (status, body) = post(address, "/v1/completions", &request("w5 w6 w7", true));
    let events = events(&body);
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!((status, text), (200, expected));

    // The template of this model writes `w2` behind what is said.
    let prompt = model.encode("w5 w2").unwrap();
    let tokens = generator.generate(&prompt, &Sampling::greedy(), &limits).unwrap();
    let expected: String = tokens.map(|token| token.unwrap().text).collect();
    let parts = json!([{"type": "text", "text": "w5"}]);
    let messages = json!([{"role": "user", "content": parts}]);
    let chat = json!({"messages": messages, "max_completion_tokens": 8, "logprobs": true, "top_logprobs": 2});
    let (status, body) = post(address, "/v1/chat/completions", &chat.to_string());
    let reply: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &reply["choices"][0]["message"]["content"]), (200, &json!(expected)), "{body}");
    let logprobs = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!((logprobs.len(), logprobs[0]["top_logprobs"].as_array().unwrap().len()), (8, 2));
}

#[test]
fn many_clients_get_their_own_texts() {
    const CLIENTS: usize = 16;
    const REQUESTS: usize = 240;
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let address = started(&model, ServerOptions { parallel: 2, ..ServerOptions::default() });
    let prompts: Vec<String> = (0..6).map(|number| format!("w{} w{} w9", number + 20, number + 40)).collect();
    let text = |body: &str| serde_json::from_str::<Value>(body).unwrap()["choices"][0]["text"].clone();
    let expected: Vec<Value> =
        prompts.iter().map(|prompt| text(&post(address, "/v1/completions", &request(prompt, false)).1)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= REQUESTS {
                        return;
                    }
                    let body = request(&prompts[number % prompts.len()], number % 3 == 1);
                    match number % 7 {
                        // Half a request, and a reply that nobody reads.
                        3 => {
                            let mut stream = TcpStream::connect(address).unwrap();
                            stream.write_all(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99\r\n\r\n{").unwrap();
                            stream.shutdown(Shutdown::Both).unwrap();
                        }
                        5 => {
                            let mut stream = TcpStream::connect(address).unwrap();
                            let head =
                                format!("POST /v1/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
                            stream.write_all((head + &body).as_bytes()).unwrap();
                        }
                        _ => {
                            let (status, reply) = post(address, "/v1/completions", &body);
                            assert_eq!(status, 200, "{reply}");
                            let expected = expected[number % prompts.len()].as_str().unwrap();
                            if number % 3 == 1 {
                                let events = events(&reply);
                                let pieces = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap());
                                assert_eq!(pieces.collect::<String>(), expected);
                            } else {
                                assert_eq!(text(&reply), expected);
                            }
                        }
                    }
                }
            });
        }
    });
    // All connections but the one that asks are closed, and all generators are back.
    let open = || get(address, "/metrics").1.lines().any(|line| line == "ipuc_connections 1");
    assert!((0..100).any(|_| open() || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        false
    }));
}

#[test]
fn what_is_wrong_is_told_and_the_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let options = ServerOptions { key: Some("secret".to_string()), body_bytes: 2000, ..ServerOptions::default() };
    let address = started(&model, options);
    let with_key = |body: &str| {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        exchange(address, (head + body).as_bytes())
    };
    for (body, status, expected) in [
        ("{", 400, "the body is no request: EOF while parsing an object at line 1 column 1"),
        ("{}", 400, "`prompt` is missing"),
        (r#"{"prompt": 7}"#, 400, "`prompt` must be a text, a list of one text, or a list of tokens"),
        (r#"{"prompt": ""}"#, 400, "the prompt is empty"),
        (r#"{"prompt": "w3", "model": "other"}"#, 404, "there is no such model; the model is `model`"),
        (r#"{"prompt": "w3", "n": 2}"#, 400, "`n` must be 1"),
        (r#"{"prompt": "w3", "best_of": 2}"#, 400, "`best_of` is not supported"),
        (
            r#"{"prompt": "w3", "presence_penalty": 1}"#,
            400,
            "`presence_penalty` is not supported; `repetition_penalty` is",
        ),
        (r#"{"prompt": "w3", "top_p": 0}"#, 400, "top-p is 0, but must be greater than 0 and at most 1"),
        (r#"{"prompt": "w3", "logprobs": 21}"#, 400, "at most 20 likely tokens are given"),
        (&" ".repeat(2001), 413, "the body is too long"),
    ] {
        let (found, reply) = with_key(body);
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!((found, &reply["error"]["message"]), (status, &json!(expected)));
    }
    let long = "A: ".to_string() + &"x".repeat(20_000);
    for (bytes, status) in [
        ("nonsense\r\n\r\n", 400),
        ("GET /nothing HTTP/1.1\r\n\r\n", 404),
        ("GET /v1/completions HTTP/1.1\r\n\r\n", 405),
        ("GET /v1/models HTTP/1.1\r\n\r\n", 401),
        ("GET /v1/models HTTP/1.1\r\nAuthorization: Bearer secreT\r\n\r\n", 401),
        ("GET /v1/models HTTP/1.1\r\nAuthorization: Bearer secret\r\n\r\n", 200),
        ("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (&format!("GET /health HTTP/1.1\r\n{long}"), 431),
        ("GET /health HTTP/1.1\r\n\r\n", 200),
    ] {
        assert_eq!(exchange(address, bytes.as_bytes()).0, status, "{}", &bytes[..bytes.len().min(100)]);
    }
    assert_eq!(with_key(r#"{"prompt": "w3", "temperature": 0}"#).0, 200);
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write_folder_of_bytes(folder.path());
    let model = compiled(folder.path());
    let address = started(&model, ServerOptions { parallel: 4, ..ServerOptions::default() });
    let schema = json!({
        "x-guidance": {"whitespace_flexible": false}, "type": "object", "additionalProperties": false,
        "required": ["yes"], "properties": {"yes": {"type": "boolean"}},
    });
    let body = |format: Value, seed: usize| {
        json!({"messages": [{"role": "user", "content": "?"}], "max_tokens": 100, "temperature": 1, "seed": seed,
            "response_format": format})
        .to_string()
    };
    let named = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}});
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let body = body(named(schema.clone()), seed);
            scope.spawn(move || {
                let (status, reply) = post(address, "/v1/chat/completions", &body);
                let reply: Value = serde_json::from_str(&reply).unwrap();
                assert_eq!((status, &reply["choices"][0]["finish_reason"]), (200, &json!("stop")), "{reply}");
                let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
                let answer: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{content}: {error}"));
                assert!(answer == json!({"yes": true}) || answer == json!({"yes": false}), "{content}");
            });
        }
    });
    let (status, reply) = post(address, "/v1/chat/completions", &body(named(json!({"type": "nothing"})), 0));
    assert_eq!(status, 400, "{reply}");
    assert!(reply.contains("the grammar cannot be followed: "), "{reply}");
    let (status, reply) = post(address, "/v1/chat/completions", &body(json!({"type": "xml"}), 0));
    assert_eq!(status, 400, "{reply}");
    assert!(reply.contains("unknown variant `xml`"), "{reply}");
}

#[test]
fn others_can_connect_only_where_there_is_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let options = ServerOptions { address: "0.0.0.0:0".to_string(), ..ServerOptions::default() };
    let refused = Server::bind(&model, options.clone()).err().unwrap();
    assert!(matches!(refused, ServeError::Key { .. }), "{refused}");
    Server::bind(&model, ServerOptions { key: Some("secret".to_string()), ..options }).unwrap();
}
