//! A stand-in for the Hub on a loopback port: the routes that a client of models meets, with their headers, redirects
//! and ranges, and the ways in which they go wrong.

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::json;

/// A model on the Hub, and the failures that its requests meet.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Status and `X-Error-Code` of the answer about the model.
    pub(crate) refuse: Option<(u16, &'static str)>,
    /// Status and `X-Error-Code` of the answer for each file.
    pub(crate) refuse_files: Option<(u16, &'static str)>,
    /// For each file, after how many bytes the next answers break off.
    pub(crate) breaks: HashMap<String, Vec<usize>>,
    /// After the broken part nothing more is sent, and the connection stays.
    pub(crate) silent: bool,
    /// How long the first byte of a file takes.
    pub(crate) pause: Duration,
    /// Ranges are ignored in answers of more than one byte.
    pub(crate) no_ranges: bool,
}

/// A request that was received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) model: Arc<Mutex<Model>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// What the model is called.
pub(crate) const NAME: &str = "owner/tiny";

/// What it was called once.
pub(crate) const OLD_NAME: &str = "owner/old";

impl Server {
    pub(crate) fn start(model: Model) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (model, requests) = (Arc::new(Mutex::new(model)), Arc::new(Mutex::new(Vec::new())));
        let server =
            Self { address: address.clone(), model: Arc::clone(&model), requests: Arc::clone(&requests) };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (model, requests, address) = (Arc::clone(&model), Arc::clone(&requests), address.clone());
                // A client that disconnects early is no failure of the server.
                thread::spawn(move || drop(answer(stream, &model, &requests, &address)));
            }
        });
        server
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn answer(
    mut stream: TcpStream,
    model: &Mutex<Model>,
    requests: &Mutex<Vec<Request>>,
    address: &str,
) -> std::io::Result<()> {
    let request = read(&mut stream)?;
    requests.lock().unwrap().push(request.clone());
    let mut model = model.lock().unwrap();
    let path = request.path.split('?').next().unwrap_or_default().to_owned();
    if path.contains(OLD_NAME) {
        let location = path.replace(OLD_NAME, NAME);
        return head(&mut stream, 307, &[("Location", &location)], 0);
    }
    if let Some(rest) = path.strip_prefix(&format!("/api/models/{NAME}/revision/")) {
        let listed: Vec<_> = model
            .files
            .iter()
            .map(|(name, bytes)| json!({ "rfilename": name, "size": bytes.len() }))
            .collect();
        let body = json!({ "sha": model.commit, "siblings": listed, "id": NAME }).to_string();
        return match model.refuse {
            _ if rest == "missing" => head(&mut stream, 404, &[("X-Error-Code", "RevisionNotFound")], 0),
            Some((status, code)) => head(&mut stream, status, &[("X-Error-Code", code)], 0),
            None => {
                head(&mut stream, 200, &[("Content-Type", "application/json")], body.len())?;
                stream.write_all(body.as_bytes())
            }
        };
    }
    let resolve = format!("/{NAME}/resolve/{}/", model.commit);
    if let Some(file) = path.strip_prefix(&resolve).filter(|file| model.files.contains_key(*file)) {
        if let Some((status, code)) = model.refuse_files {
            return head(&mut stream, status, &[("X-Error-Code", code)], 0);
        }
        let etag = etag(&model.files[file]);
        if file.ends_with(".safetensors") {
            // Large files lie elsewhere.
            let location = format!("{address}/elsewhere/{file}");
            let headers =
                [("Location", &*location), ("X-Repo-Commit", &*model.commit), ("X-Linked-Etag", &*etag)];
            return head(&mut stream, 302, &headers, 0);
        }
        return send(stream, &mut model, file, &request, &etag);
    }
    match path.strip_prefix("/elsewhere/") {
        Some(file) => send(stream, &mut model, file, &request, "\"of the store\""),
        None => head(&mut stream, 404, &[("X-Error-Code", "EntryNotFound")], 0),
    }
}

fn send(
    mut stream: TcpStream,
    model: &mut Model,
    file: &str,
    request: &Request,
    etag: &str,
) -> std::io::Result<()> {
    thread::sleep(model.pause);
    let bytes = model.files[file].clone();
    let range = request.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let asked_one = request.range.as_deref() == Some("bytes=0-0");
    let first = range.and_then(|(first, _)| first.parse::<usize>().ok()).unwrap_or(0);
    if first >= bytes.len() {
        return head(&mut stream, 416, &[], 0);
    }
    let ranged = range.is_some() && (asked_one || !model.no_ranges);
    let part = match ranged {
        true if asked_one => &bytes[..1],
        true => &bytes[first..],
        false => &bytes[..],
    };
    let content_range = format!("bytes {first}-{}/{}", first + part.len() - 1, bytes.len());
    let mut headers = vec![("ETag", etag), ("X-Repo-Commit", &*model.commit)];
    headers.extend(ranged.then_some(("Content-Range", &*content_range)));
    head(&mut stream, if ranged { 206 } else { 200 }, &headers, part.len())?;
    let breaks = model.breaks.get_mut(file).filter(|breaks| !asked_one && !breaks.is_empty());
    match breaks.map(|breaks| breaks.remove(0)) {
        Some(after) => {
            stream.write_all(&part[..after.min(part.len())])?;
            stream.flush()?;
            if model.silent {
                thread::spawn(move || {
                    thread::sleep(Duration::from_secs(20));
                    drop(stream);
                });
            }
            Ok(())
        }
        None => stream.write_all(part),
    }
}

fn etag(bytes: &[u8]) -> String {
    // As good as a digest for the few files of a test.
    let sum =
        bytes.iter().fold(bytes.len() as u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("\"{sum:016x}\"")
}

fn head(stream: &mut TcpStream, status: u16, headers: &[(&str, &str)], len: usize) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} Status\r\nContent-Length: {len}\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    stream.write_all((text + "\r\n").as_bytes())
}

fn read(stream: &mut TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut request =
        Request { path: first.split(' ').nth(1).unwrap_or_default().to_owned(), ..Request::default() };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(request)
}
