//! Bearer token in a file that the kubelet replaces before the token expires.
//!
//! kube also reloads such a file, but by the wall clock, which may be set back. It does not reload when the API server rejects
//! the token, and it keeps the trailing newline. This module follows client-go.

use std::{fs, io, path::PathBuf, time::Duration};

use http::{
    Request, Response, StatusCode,
    header::{AUTHORIZATION, HeaderValue},
};
use kube::config::AuthInfo;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::telemetry::log_once::OutageLog;

/// Reload interval.
const PERIOD: Duration = Duration::from_mins(1);

/// Token of a file.
pub(crate) struct TokenFile {
    path: PathBuf,
    last: Mutex<Last>,
}

struct Last {
    header: HeaderValue,
    /// Time of the last read. `None` if the token has been rejected since, or if the first read failed.
    read: Option<Instant>,
    /// Logged read errors of the current outage.
    trouble: OutageLog,
}

impl TokenFile {
    /// Moves the token file out of `auth` if client-go would use it. An empty field counts as unset.
    ///
    /// The file takes precedence over a token and an exec plugin. The token is used until the file can be read.
    pub(crate) fn take(auth: &mut AuthInfo) -> kube::Result<Option<Self>> {
        let [password, token] = ["password", "token"].map(|name| secret(auth, name));
        auth.username.take_if(|name| name.is_empty());
        auth.password.take_if(|_| password.is_none());
        auth.token.take_if(|_| token.is_none());
        // kube resolves an empty path to the path of the folder.
        auth.token_file
            .take_if(|path| path.is_empty() || path.ends_with('/'));
        let is_basic = auth.username.is_some() && auth.password.is_some();
        if auth.auth_provider.is_some() || is_basic {
            return Ok(None);
        }
        let Some(path) = auth.token_file.take().map(PathBuf::from) else {
            return Ok(None);
        };
        let (header, read) = match (read(&path), token.as_deref().map(bearer)) {
            (Ok(header), _) => (header, Some(Instant::now())),
            (Err(_), Some(Ok(header))) => (header, None),
            (Err(error), _) => {
                let error = kube::client::AuthError::ReadTokenFile(error, path);
                return Err(kube::Error::Auth(error));
            }
        };
        (auth.token, auth.exec) = (None, None);
        let last = Mutex::new(Last {
            header,
            read,
            trouble: OutageLog::default(),
        });
        Ok(Some(Self { path, last }))
    }

    /// Adds the token to a request. If the file cannot be read, uses the previous token, because the file may be removed after
    /// the start.
    pub(crate) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock();
        if last.read.is_none_or(|read| read.elapsed() >= PERIOD) {
            last.read = Some(Instant::now());
            let path = self.path.display();
            match read(&self.path) {
                Ok(header) => {
                    last.header = header;
                    if last.trouble.is_over() {
                        info!("the token file {path} can be read again");
                        last.trouble.clear();
                    }
                }
                Err(error) => {
                    if let Some(lasting) = last.trouble.is_due(&error.to_string()) {
                        warn!(
                            "cannot read the token file {path}: {error}; using the previous token{lasting}"
                        );
                    }
                }
            }
        }
        let header = last.header.clone();
        request.headers_mut().insert(AUTHORIZATION, header);
        request
    }

    /// Schedules a reload for the next request if the API server rejected the token.
    pub(crate) fn observe<B>(&self, response: &Response<B>) {
        if response.status() == StatusCode::UNAUTHORIZED {
            self.last.lock().read = None;
        }
    }
}

/// Returns a secret of a user, unless it is empty. kube exposes its secrets only through serialization.
pub(crate) fn secret(user: &AuthInfo, name: &str) -> Option<String> {
    let user = serde_json::to_value(user).ok()?;
    let text = user[name].as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
}

fn read(path: &PathBuf) -> io::Result<HeaderValue> {
    bearer(fs::read_to_string(path)?.trim())
}

pub(crate) fn bearer(token: &str) -> io::Result<HeaderValue> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    if token.is_empty() {
        return Err(invalid("it is empty"));
    }
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|_| invalid("it holds no token"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;
    use tokio::time::advance;

    use super::*;
    use crate::testing::fixtures::logged;

    fn token(file: &TokenFile) -> String {
        let request = file.authorize(Request::new(()));
        let header = &request.headers()[AUTHORIZATION];
        assert!(header.is_sensitive());
        header.to_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_token_is_read_after_a_minute_or_a_rejection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let auth = || AuthInfo {
            token_file: Some(path.to_str().unwrap().to_owned()),
            ..AuthInfo::default()
        };
        for nothing in ["", " \n", "a\u{7f}b"] {
            fs::write(&path, nothing).unwrap();
            assert!(TokenFile::take(&mut auth()).is_err(), "{nothing:?}");
        }
        fs::write(&path, "first\n").unwrap();
        let mut taken = auth();
        let file = TokenFile::take(&mut taken).unwrap().unwrap();
        assert_eq!(taken.token_file, None, "or kube would add its own");
        assert_eq!(token(&file), "Bearer first");

        fs::write(&path, "second").unwrap();
        advance(Duration::from_secs(59)).await;
        assert_eq!(token(&file), "Bearer first");
        advance(Duration::from_secs(1)).await;
        assert_eq!(token(&file), "Bearer second");

        fs::write(&path, "third").unwrap();
        for (status, expected) in [
            (StatusCode::FORBIDDEN, "Bearer second"),
            (StatusCode::UNAUTHORIZED, "Bearer third"),
        ] {
            let response = Response::builder().status(status).body(()).unwrap();
            file.observe(&response);
            assert_eq!(token(&file), expected);
        }

        for gone in [|path| fs::write(path, ""), |path| fs::remove_file(path)] {
            gone(&path).unwrap();
            advance(PERIOD).await;
            assert_eq!(token(&file), "Bearer third");
        }
    }

    /// Every request rereads the file while the server rejects the token. The log does not grow with the requests.
    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_read_is_logged_once_for_each_cause() {
        let (lines, _guard) = logged(tracing::Level::INFO);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "first").unwrap();
        let mut auth = AuthInfo {
            token_file: Some(path.to_str().unwrap().to_owned()),
            ..AuthInfo::default()
        };
        let file = TokenFile::take(&mut auth).unwrap().unwrap();
        let new_lines = || {
            for _ in 0..100 {
                file.observe(&Response::builder().status(401).body(()).unwrap());
                token(&file);
            }
            let lines = std::mem::take(&mut *lines.lock());
            let lines = String::from_utf8(lines).unwrap();
            assert!(
                lines
                    .lines()
                    .all(|line| line.contains(path.to_str().unwrap())),
                "{lines}"
            );
            lines
                .lines()
                .map(|line| line.split(": ").last().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(new_lines(), [""; 0]);
        for _ in 0..2 {
            fs::remove_file(&path).unwrap();
            let gone = new_lines().concat();
            assert!(gone.starts_with("No such file or directory"), "{gone}");
            fs::write(&path, "").unwrap();
            let empty = new_lines().concat();
            assert!(empty.starts_with("it is empty"), "{empty}");
            fs::write(&path, "second").unwrap();
            let again = new_lines().concat();
            assert!(again.ends_with("can be read again"), "{again}");
        }
    }

    /// As in client-go, the file takes precedence over a token and a command, and an empty field counts as unset.
    #[test]
    fn the_token_file_takes_precedence_as_in_client_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "files").unwrap();
        let file = json!(path);
        let command =
            json!({ "command": "false", "apiVersion": "client.authentication.k8s.io/v1" });
        for (user, expected) in [
            (json!({ "tokenFile": file }), Some("files")),
            (
                json!({ "tokenFile": file, "token": "users" }),
                Some("files"),
            ),
            (json!({ "tokenFile": file, "exec": command }), Some("files")),
            (json!({ "tokenFile": file, "token": "" }), Some("files")),
            (json!({ "tokenFile": file, "username": "u" }), Some("files")),
            (
                json!({ "tokenFile": file, "username": "u", "password": "" }),
                Some("files"),
            ),
            (
                json!({ "tokenFile": file, "username": "", "password": "p" }),
                Some("files"),
            ),
            (
                json!({ "tokenFile": "/nowhere", "token": "users" }),
                Some("users"),
            ),
            (
                json!({ "tokenFile": file, "username": "u", "password": "p" }),
                None,
            ),
            (
                json!({ "tokenFile": file, "auth-provider": { "name": "gcp", "config": {} } }),
                None,
            ),
            (json!({ "tokenFile": "", "token": "users" }), None),
            (json!({ "tokenFile": "/folder/", "token": "users" }), None),
        ] {
            let mut auth: AuthInfo = serde_json::from_value(user.clone()).unwrap();
            let taken = TokenFile::take(&mut auth).unwrap();
            let header = expected.map(|text| format!("Bearer {text}"));
            assert_eq!(taken.as_ref().map(token), header, "{user}");
            if taken.is_some() {
                let left = (auth.token.is_some(), auth.token_file, auth.exec.is_some());
                assert_eq!(
                    left,
                    (false, None, false),
                    "or kube would add its own: {user}"
                );
            }
        }
        let nothing = json!({ "tokenFile": "", "token": "", "username": "", "password": "" });
        let mut auth: AuthInfo = serde_json::from_value(nothing).unwrap();
        assert!(TokenFile::take(&mut auth).unwrap().is_none());
        assert_eq!(serde_json::to_value(auth).unwrap(), json!({}));
        let mut auth: AuthInfo =
            serde_json::from_value(json!({ "tokenFile": "/nowhere" })).unwrap();
        assert!(TokenFile::take(&mut auth).is_err());
    }
}
