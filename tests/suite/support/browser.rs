//! A headless Chromium, driven through the pipes of its developer tools, without a driver program or a port.
//!
//! One browser serves all tests that run at the same time, and each page has a profile of its own. The browser ends
//! with the last test that uses it. If the whole program is killed, the browser ends by itself, because its pipe is
//! closed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use base64::Engine;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::DEADLINE;

/// Script that finds things on a page.
const EYE: &str = include_str!("browser.js");

/// Flags of the browser. The user data is in `dir`. It shows only our own pages, so it needs no sandbox, which some
/// containers do not allow.
const FLAGS: &[&str] = &[
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-extensions",
    // No process waits for the next site of a page: tests visit one.
    "--disable-features=SpareRendererForSitePerProcess",
    "--no-default-browser-check",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// Pauses between two questions to a page.
const MIN_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// A running browser.
pub(crate) struct Browser {
    child: Mutex<Child>,
    wire: Arc<Wire>,
    _dir: tempfile::TempDir,
}

/// Both directions of the pipe.
struct Wire {
    to: Mutex<ChildStdin>,
    next: AtomicU64,
    /// Calls without an answer, by number. `None` after the browser has ended.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Value>>>>,
    pages: Mutex<HashMap<String, Arc<Mutex<Seen>>>>,
}

/// Events of a page that its user may not see.
#[derive(Default)]
struct Seen {
    troubles: Vec<String>,
    /// Paths of requests, by their number.
    requests: HashMap<String, String>,
    /// Number of bytes that came over the network, by path.
    bytes: HashMap<String, u64>,
}

/// Return the path of a program that `install.sh` provides, or the reason why there is none.
fn installed(switch: &str) -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("internal/services/install.sh");
    let output = Command::new("sh").arg(script).arg(switch).stdin(Stdio::null()).output().expect("there is a shell");
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).unwrap().trim().into());
    }
    Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("install.sh fails").to_owned())
}

/// Return the script that checks a page for accessibility, or `None` if it is not available.
pub(crate) fn axe() -> Option<String> {
    match installed("--axe") {
        Ok(path) => Some(std::fs::read_to_string(path).unwrap()),
        Err(why) => {
            println!("no check of accessibility: {why}");
            None
        }
    }
}

impl Browser {
    /// Return the browser of all tests. On a machine without one, print the reason and return `None`.
    pub(crate) async fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Browser>> = Mutex::new(Weak::new());
        let program = Self::program().await?;
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One that died fails the tests that use it, and no other.
        Some(shared.upgrade().filter(|browser| browser.is_alive()).unwrap_or_else(|| {
            let browser = Arc::new(Self::launch(program, &[]));
            *shared = Arc::downgrade(&browser);
            browser
        }))
    }

    /// Start a browser whose tabs share a process: with a process each, a hundred of them would fill the memory. On a
    /// machine without a browser, print the reason and return `None`.
    pub(crate) async fn of_many_tabs() -> Option<Arc<Self>> {
        let program = Self::program().await?;
        Some(Arc::new(Self::launch(program, &["--process-per-site"])))
    }

    /// Return the program, or print why there is none.
    async fn program() -> Option<&'static Path> {
        static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        match tokio::task::spawn_blocking(|| PROGRAM.get_or_init(|| installed("--chromium"))).await.unwrap() {
            Ok(program) => Some(program),
            Err(why) => {
                println!("skipped: {why}");
                None
            }
        }
    }

    fn is_alive(&self) -> bool {
        self.wire.waiting.lock().unwrap().is_some()
    }

    fn launch(program: &Path, more: &[&str]) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // The browser reads commands from descriptor 3 and answers on descriptor 4.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#])
            .arg(program)
            .args(FLAGS)
            .args(more)
            .arg(format!("--user-data-dir={}", dir.path().display()))
            .arg("about:blank")
            .env("HOME", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let wire = Arc::new(Wire {
            to: Mutex::new(to),
            next: AtomicU64::new(1),
            waiting: Mutex::new(Some(HashMap::new())),
            pages: Mutex::new(HashMap::new()),
        });
        // This is a thread and not a task, because the browser outlives the runtime of the test that started it.
        let hears = wire.clone();
        std::thread::spawn(move || hears.hear(BufReader::new(from)));
        Self { child: Mutex::new(child), wire, _dir: dir }
    }

    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value, String> {
        let answer = self.wire.send(session, method, &params);
        // A browser on a busy machine is slow, above all with scripts that look at a whole page.
        let answer = tokio::time::timeout(3 * DEADLINE, answer).await;
        let answer = answer.unwrap_or_else(|_| panic!("the browser does not answer {method}"));
        let mut answer = answer.unwrap_or_else(|_| panic!("the browser has ended before it answered {method}"));
        match answer.get("error") {
            Some(error) => Err(format!("{method}: {error}")),
            None => Ok(answer["result"].take()),
        }
    }

    /// Open a page on the dashboard at `base`, with a profile of its own.
    pub(crate) async fn page(self: &Arc<Self>, base: &str) -> Page {
        let context = self.call(None, "Target.createBrowserContext", json!({})).await.unwrap();
        self.tab(base, context["browserContextId"].as_str().unwrap().to_owned()).await
    }

    /// Open a page in this profile.
    async fn tab(self: &Arc<Self>, base: &str, context: String) -> Page {
        let target = json!({"url": "about:blank", "browserContextId": context, "width": 1_280, "height": 900});
        let target = self.call(None, "Target.createTarget", target).await.unwrap();
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call(None, "Target.attachToTarget", attach).await.unwrap();
        let session = session["sessionId"].as_str().unwrap().to_owned();
        let seen = Arc::<Mutex<Seen>>::default();
        self.wire.pages.lock().unwrap().insert(session.clone(), seen.clone());
        let page = Page { browser: self.clone(), base: base.to_owned(), context, session, seen };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            page.call(domain, json!({})).await;
        }
        // Each page begins with some forty files, and a server of a debug build compresses slowly. An old browser does
        // not know the command, and its pages come compressed.
        let plain = json!({"encodings": []});
        let _ = self.call(Some(&page.session), "Network.setAcceptedEncodings", plain).await;
        page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": EYE})).await;
        // Without this, pages that are tested at the same time would take the focus from one another.
        page.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true})).await;
        page.size(1_280, 900).await;
        page.theme("light").await;
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let group = format!("-{}", child.id());
        let _ = Command::new("sh").args(["-c", r#"kill -s KILL -- "$1""#, "kill", &group]).status();
        let _ = child.wait();
    }
}

impl Wire {
    /// Send a command and return a receiver for the answer. The receiver fails when the browser ends first.
    fn send(&self, session: Option<&str>, method: &str, params: &Value) -> oneshot::Receiver<Value> {
        let (tell, told) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(waiting) = self.waiting.lock().unwrap().as_mut() {
            waiting.insert(id, tell);
        }
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let mut to = self.to.lock().unwrap();
        // If the write fails, the browser cannot answer either, and the caller gets that error.
        let _ = to.write_all(&bytes).and_then(|()| to.flush());
        told
    }

    fn hear(&self, mut from: impl BufRead) {
        let mut bytes = Vec::new();
        while from.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
            let message: Value = serde_json::from_slice(bytes.strip_suffix(&[0]).unwrap_or(&bytes)).unwrap_or_default();
            bytes.clear();
            if let Some(id) = message["id"].as_u64() {
                let asked = self.waiting.lock().unwrap().as_mut().and_then(|waiting| waiting.remove(&id));
                if let Some(asked) = asked {
                    let _ = asked.send(message);
                }
            } else if let Some(session) = message["sessionId"].as_str() {
                if message["method"] == "Page.javascriptDialogOpening" {
                    // A dialog without an answer would block the page.
                    drop(self.send(Some(session), "Page.handleJavaScriptDialog", &json!({"accept": true})));
                }
                let seen = self.pages.lock().unwrap().get(session).cloned();
                if let (Some(seen), Some(method)) = (seen, message["method"].as_str()) {
                    seen.lock().unwrap().note(method, &message["params"]);
                }
            }
        }
        self.waiting.lock().unwrap().take();
    }
}

impl Seen {
    fn note(&mut self, method: &str, params: &Value) {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let request = || params["requestId"].as_str().unwrap_or_default().to_owned();
        match method {
            "Runtime.exceptionThrown" => {
                let details = &params["exceptionDetails"];
                let thrown = details["exception"]["description"].as_str().unwrap_or_default();
                self.troubles.push(format!("exception: {} {thrown}", text(&details["text"])));
            }
            "Runtime.consoleAPICalled" if matches!(params["type"].as_str(), Some("error" | "assert")) => {
                let said = params["args"].as_array().into_iter().flatten();
                let said: Vec<String> =
                    said.map(|arg| text(arg.get("value").or(arg.get("description")).unwrap_or(arg))).collect();
                self.troubles.push(format!("console: {}", said.join(" ")));
            }
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                let entry = &params["entry"];
                // A runner that is busy tells the page to come again, and the page does. The browser logs it all the same.
                if text(&entry["text"]).contains("429") {
                    return;
                }
                self.troubles.push(format!("log: {} {}", text(&entry["text"]), text(&entry["url"])));
            }
            "Page.javascriptDialogOpening" => self.troubles.push(format!("dialog: {}", text(&params["message"]))),
            "Network.requestWillBeSent" => {
                let url = text(&params["request"]["url"]);
                let path = url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| rest[at..].to_owned()));
                self.requests.insert(request(), path.unwrap_or(url));
            }
            "Network.loadingFailed" => {
                let path = self.requests.remove(&request()).unwrap_or_default();
                if params["canceled"] != true {
                    self.troubles.push(format!("request: {path} {}", text(&params["errorText"])));
                }
            }
            "Network.loadingFinished" => {
                let path = self.requests.remove(&request()).unwrap_or_default();
                let size = params["encodedDataLength"].as_f64().unwrap_or(0.0);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number of bytes")]
                let size = size as u64;
                *self.bytes.entry(path).or_default() += size;
            }
            _ => {}
        }
    }
}

/// An element of a page, as its user would name it.
#[derive(Clone, Debug)]
pub(crate) struct Thing {
    role: &'static str,
    name: String,
    near: Option<String>,
}

/// Describe a button, or an element that looks like one.
pub(crate) fn button(name: &str) -> Thing {
    Thing { role: "button", name: name.to_owned(), near: None }
}

pub(crate) fn link(name: &str) -> Thing {
    Thing { role: "link", name: name.to_owned(), near: None }
}

/// Describe any element that has this label and takes a value.
pub(crate) fn field(name: &str) -> Thing {
    Thing { role: "field", name: name.to_owned(), near: None }
}

pub(crate) fn choice(name: &str) -> Thing {
    Thing { role: "option", name: name.to_owned(), near: None }
}

pub(crate) fn heading(name: &str) -> Thing {
    Thing { role: "heading", name: name.to_owned(), near: None }
}

impl Thing {
    /// Choose the element in the row, entry or section that has this text.
    pub(crate) fn near(mut self, text: &str) -> Self {
        self.near = Some(text.to_owned());
        self
    }

    fn json(&self) -> Value {
        json!({"role": self.role, "name": self.name, "near": self.near})
    }
}

/// The memory of a page: the bytes of its scripts' heap, its nodes and the listeners of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) bytes: f64,
    pub(crate) nodes: f64,
    pub(crate) listeners: f64,
}

/// One page of the browser. It is closed when dropped.
pub(crate) struct Page {
    browser: Arc<Browser>,
    base: String,
    context: String,
    session: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Deserialize)]
struct Target {
    x: Option<f64>,
    y: Option<f64>,
    not: Option<String>,
}

#[derive(Deserialize)]
struct Focused {
    #[serde(default)]
    set: bool,
    #[serde(default)]
    typed: bool,
    not: Option<String>,
}

impl Page {
    async fn call(&self, method: &str, params: Value) -> Value {
        self.browser.call(Some(&self.session), method, params).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Let the server compress what it sends, as it does for users.
    pub(crate) async fn take_compressed(&self) {
        let _ = self.browser.call(Some(&self.session), "Network.clearAcceptedEncodingsOverride", json!({})).await;
    }

    /// Load an address of the dashboard, and wait until its screen is there.
    pub(crate) async fn visit(&self, path: &str) {
        self.call("Page.navigate", json!({"url": format!("{}{path}", self.base)})).await;
        self.settles(path).await;
    }

    /// Wait until a screen is there with all data that it requested.
    pub(crate) async fn settles(&self, path: &str) {
        let at = serde_json::to_string(path).unwrap();
        self.until(
            &format!("{path} is shown"),
            &format!("__eye.settled() && (location.pathname + location.search === {at} || location.pathname === {at})"),
        )
        .await;
    }

    /// Go to another screen as a link does, and wait until it is there.
    pub(crate) async fn follow(&self, path: &str) {
        self.eval::<Value>(&format!("__eye.follow({})", json!(path))).await;
        self.settles(path).await;
    }

    /// Open another tab of the same browser. It closes with this page.
    pub(crate) async fn beside(&self) -> Self {
        self.browser.tab(&self.base, self.context.clone()).await
    }

    /// Leave the document, as a tab does that is closed. The profile stays.
    pub(crate) async fn blank(&self) {
        self.call("Page.navigate", json!({"url": "about:blank"})).await;
        self.until("the tab is blank", "location.href === 'about:blank'").await;
    }

    /// Return the number of requests for this path that have no end yet.
    pub(crate) fn under_way(&self, path: &str) -> usize {
        self.seen.lock().unwrap().requests.values().filter(|asked| *asked == path).count()
    }

    async fn try_eval<T: DeserializeOwned>(&self, script: &str) -> Result<T, String> {
        let params = json!({"expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let answer = self.browser.call(Some(&self.session), "Runtime.evaluate", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            return Err(format!("{script}: {thrown}"));
        }
        serde_json::from_value(answer["result"].get("value").cloned().unwrap_or(Value::Null))
            .map_err(|error| format!("{script}: {error}"))
    }

    /// Return the value of an expression, or of the promise that it returns.
    pub(crate) async fn eval<T: DeserializeOwned>(&self, script: &str) -> T {
        self.try_eval(script).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Wait until an expression holds.
    pub(crate) async fn until(&self, what: &str, script: &str) {
        let asked = async || match self.try_eval::<Value>(script).await {
            Ok(Value::Bool(true)) => Ok(()),
            Ok(other) => Err(other.to_string()),
            // Between two documents, the expression cannot be evaluated.
            Err(error) => Err(error),
        };
        self.patiently(what, asked).await;
    }

    /// Repeat an action until it succeeds. After the deadline, panic with the last error and all that the page shows.
    async fn patiently<T>(&self, what: &str, mut act: impl AsyncFnMut() -> Result<T, String>) -> T {
        // A browser on a busy machine is slow to draw, and several of them run at a time.
        let began = Instant::now();
        let deadline = began + 3 * DEADLINE;
        loop {
            let wrong = match act().await {
                Ok(done) => return done,
                Err(wrong) => wrong,
            };
            if Instant::now() >= deadline {
                let shot = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gave-up-{}.png", self.session));
                self.shot(&shot).await;
                let shown: String =
                    self.try_eval("location.href + '\\n' + document.body.innerText").await.unwrap_or_default();
                panic!("gave up waiting until {what}: {wrong}\n{:?}\n{}\n{shown}", self.troubles(), shot.display());
            }
            // Each question lays the page out anew, so there are fewer than in other loops.
            tokio::time::sleep((began.elapsed() / 5).clamp(MIN_PAUSE, MAX_PAUSE)).await;
        }
    }

    /// Wait until the page shows this text.
    pub(crate) async fn reads(&self, text: &str) {
        self.until(&format!("{text:?} is read"), &format!("__eye.ask('reads', {})", json!(text))).await;
    }

    /// Wait until the page does not show this text any more.
    pub(crate) async fn reads_not(&self, text: &str) {
        self.until(&format!("{text:?} is not read"), &format!("!__eye.ask('reads', {})", json!(text))).await;
    }

    /// Wait until the element is there.
    pub(crate) async fn has(&self, thing: &Thing) {
        self.until(&format!("{thing:?} is there"), &format!("__eye.ask('has', {})", thing.json())).await;
    }

    /// Wait until the element is not there.
    pub(crate) async fn has_not(&self, thing: &Thing) {
        self.until(&format!("{thing:?} is not there"), &format!("!__eye.ask('has', {})", thing.json())).await;
    }

    /// Return the path and the query of the page.
    pub(crate) async fn address(&self) -> String {
        self.eval("location.pathname + location.search").await
    }

    /// Click the element with the mouse, once it stands still and is not covered.
    pub(crate) async fn click(&self, thing: &Thing) {
        self.patiently(&format!("{thing:?} is clicked"), async || {
            let target: Target = self.try_eval(&format!("__eye.target({})", thing.json())).await?;
            let (Some(x), Some(y)) = (target.x, target.y) else {
                return Err(format!("it {}", target.not.unwrap_or_default()));
            };
            for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
                let button = if kind == "mouseMoved" { "none" } else { "left" };
                let event =
                    json!({"type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1});
                self.call("Input.dispatchMouseEvent", event).await;
            }
            // A link may have led to a new document, which does not know the element.
            match self.try_eval::<Option<bool>>("__eye.hit()").await? {
                Some(false) => Err("the click went elsewhere".into()),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Take the network away from the page, or give it back.
    pub(crate) async fn offline(&self, offline: bool) {
        let network = json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.call("Network.emulateNetworkConditions", network).await;
    }

    /// Put so many milliseconds between the page and the server: each answer comes as much later.
    pub(crate) async fn latency(&self, ms: u32) {
        let network = json!({"offline": false, "latency": ms, "downloadThroughput": -1, "uploadThroughput": -1});
        self.call("Network.emulateNetworkConditions", network).await;
    }

    /// Move the mouse to a place of the window.
    pub(crate) async fn point(&self, x: f64, y: f64) {
        let event = json!({"type": "mouseMoved", "x": x, "y": y, "button": "none", "buttons": 0});
        self.call("Input.dispatchMouseEvent", event).await;
    }

    /// Press the mouse at a place of the window, move it to another one, and let it go.
    pub(crate) async fn drag(&self, from: (f64, f64), to: (f64, f64)) {
        let middle = (f64::midpoint(from.0, to.0), f64::midpoint(from.1, to.1));
        for (kind, at, buttons) in [
            ("mouseMoved", from, 0),
            ("mousePressed", from, 1),
            ("mouseMoved", middle, 1),
            ("mouseMoved", to, 1),
            ("mouseReleased", to, 0),
        ] {
            let button = if kind == "mouseMoved" && buttons == 0 { "none" } else { "left" };
            let event =
                json!({"type": kind, "x": at.0, "y": at.1, "button": button, "buttons": buttons, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Type a text, one key after the other, wherever the focus is.
    pub(crate) async fn types(&self, text: &str) {
        for key in text.chars() {
            self.press(&key.to_string()).await;
        }
    }

    /// Replace the text of a field, or choose an option.
    pub(crate) async fn fill(&self, thing: &Thing, text: &str) {
        self.patiently(&format!("{thing:?} has {text:?}"), async || {
            let focused: Focused = self.try_eval(&format!("__eye.focus({}, {})", thing.json(), json!(text))).await?;
            if focused.set {
                return Ok(());
            }
            if !focused.typed {
                return Err(format!("it {}", focused.not.unwrap_or_else(|| "takes no focus".into())));
            }
            if text.is_empty() {
                self.press("Delete").await;
            } else {
                self.call("Input.insertText", json!({"text": text})).await;
            }
            let has: Option<String> = self.try_eval(&format!("__eye.value({})", thing.json())).await?;
            if has.as_deref() == Some(text) { Ok(()) } else { Err(format!("it has {has:?}")) }
        })
        .await;
    }

    /// Return the value of a field.
    pub(crate) async fn value(&self, thing: &Thing) -> String {
        self.has(thing).await;
        self.eval(&format!("__eye.value({})", thing.json())).await
    }

    /// Press a key by its name, wherever the focus is.
    pub(crate) async fn press(&self, key: &str) {
        self.press_with(key, 0).await;
    }

    /// Press a key while others are held: 1 is Alt, 2 Ctrl, 4 Meta, 8 Shift.
    pub(crate) async fn press_with(&self, key: &str, modifiers: u8) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            "Delete" => 46,
            "ArrowDown" => 40,
            "ArrowUp" => 38,
            other => i64::from(other.to_ascii_uppercase().as_bytes()[0]),
        };
        let text = match key {
            "Enter" => "\r",
            one if one.len() == 1 && modifiers == 0 => one,
            _ => "",
        };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let down = json!({"type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code,
                          "modifiers": modifiers});
        self.call("Input.dispatchKeyEvent", down).await;
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code}),
        )
        .await;
    }

    /// Set the size of the window in CSS pixels.
    pub(crate) async fn size(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Set the preferred colour scheme of the system: `light` or `dark`.
    pub(crate) async fn theme(&self, theme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": theme}, {"name": "prefers-reduced-motion", "value": "reduce"}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Take a picture of the whole page.
    pub(crate) async fn shot(&self, path: &Path) {
        let _ = self.try_eval::<Value>("scrollTo(0, 0)").await;
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let shot = self.call("Page.captureScreenshot", params).await;
        let png = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, png).unwrap();
    }

    /// Run a script in each document that the page loads from now on, before the scripts of the document.
    pub(crate) async fn beforehand(&self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    }

    /// Run a script in a world of its own: it shares only the document with the page, and the policy of the page does
    /// not apply to it.
    pub(crate) async fn aside<T: DeserializeOwned>(&self, script: &str) -> T {
        let tree = self.call("Page.getFrameTree", json!({})).await;
        let world = json!({"frameId": tree["frameTree"]["frame"]["id"], "worldName": "aside"});
        let world = self.call("Page.createIsolatedWorld", world).await;
        let params = json!({
            "expression": script, "awaitPromise": true, "returnByValue": true, "contextId": world["executionContextId"]
        });
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer.get("exceptionDetails").is_none(), "{:#}", answer["exceptionDetails"]);
        serde_json::from_value(answer["result"]["value"].clone()).unwrap()
    }

    /// Return the troubles so far: errors on the console, exceptions, violations of the policy, failed requests and
    /// dialogs of scripts.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.seen.lock().unwrap().troubles.clone()
    }

    /// Forget a refusal that the test caused, because the browser logs each one. It may log it later than the page shows
    /// it.
    pub(crate) async fn expected(&self, part: &str) {
        super::eventually(&format!("the browser logs {part}"), || async {
            let troubles = &mut self.seen.lock().unwrap().troubles;
            let before = troubles.len();
            troubles.retain(|trouble| !trouble.contains(part));
            (troubles.len() < before).then_some(())
        })
        .await;
    }

    /// Forget refusals that the test may have caused. Unlike [`expected`](Self::expected), there may be none.
    pub(crate) fn allow(&self, part: &str) {
        self.seen.lock().unwrap().troubles.retain(|trouble| !trouble.contains(part));
    }

    /// Fail if a trouble was recorded.
    pub(crate) fn assert_calm(&self) {
        let troubles = self.troubles();
        assert!(troubles.is_empty(), "{troubles:#?}");
    }

    /// Collect the garbage of the page, and return what it holds in memory then.
    pub(crate) async fn held(&self) -> Held {
        // What the browser lets go after the first collection goes with the second one.
        for _ in 0..2 {
            self.call("HeapProfiler.collectGarbage", json!({})).await;
        }
        let heap = self.call("Runtime.getHeapUsage", json!({})).await;
        let document = self.call("Memory.getDOMCounters", json!({})).await;
        let number = |answer: &Value, field: &str| answer[field].as_f64().unwrap_or_else(|| panic!("{answer}"));
        Held {
            bytes: number(&heap, "usedSize"),
            nodes: number(&document, "nodes"),
            listeners: number(&document, "jsEventListeners"),
        }
    }

    /// Return the elements that exceed the page on the right.
    ///
    /// Charts follow a change of size a frame or two later, so a page that has just been resized gets a moment. It is
    /// longer than a stall of the machine.
    pub(crate) async fn overflow(&self) -> Vec<String> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let out: Vec<String> = self.eval("__eye.overflow()").await;
            if out.is_empty() || tokio::time::Instant::now() > deadline {
                return out;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Return the number of bytes that came over the network for the paths that `wanted` accepts.
    pub(crate) fn bytes(&self, wanted: impl Fn(&str) -> bool) -> u64 {
        let seen = self.seen.lock().unwrap();
        seen.bytes.iter().filter(|(path, _)| wanted(path)).map(|(_, bytes)| bytes).sum()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the page had {:#?}", self.troubles());
        }
        drop(self.browser.wire.send(None, "Target.disposeBrowserContext", &json!({"browserContextId": self.context})));
        self.browser.wire.pages.lock().unwrap().remove(&self.session);
    }
}
