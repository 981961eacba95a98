//! The bearer token in a file that the kubelet replaces before the token expires.
//!
//! kube reads such a file anew, too, but by the wall clock, which somebody may set back; not when the API server
//! refuses the token; and it takes the end of the line for a part of it. This is as in client-go.

use std::{fs, io, path::PathBuf, time::Duration};

use http::{
    Request, Response, StatusCode,
    header::{AUTHORIZATION, HeaderValue},
};
use kube::config::AuthInfo;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a token is used before the file is read again.
const PERIOD: Duration = Duration::from_mins(1);

/// The token of a file.
pub(crate) struct TokenFile {
    path: PathBuf,
    last: Mutex<Last>,
}

struct Last {
    header: HeaderValue,
    /// When it was read; `None` if it was refused since.
    read: Option<Instant>,
}

impl TokenFile {
    /// Takes the file over from `auth`, if it is what kube would go by.
    pub(crate) fn take(auth: &mut AuthInfo) -> kube::Result<Option<Self>> {
        if auth.auth_provider.is_some() || auth.username.is_some() || auth.token.is_some() {
            return Ok(None);
        }
        let Some(path) = auth.token_file.take().map(PathBuf::from) else {
            return Ok(None);
        };
        let header = read(&path).map_err(|error| {
            kube::Error::Auth(kube::client::AuthError::ReadTokenFile(error, path.clone()))
        })?;
        let read = Some(Instant::now());
        let last = Mutex::new(Last { header, read });
        Ok(Some(Self { path, last }))
    }

    /// Puts the token into a request. While the file cannot be read, that is the one of before: some take the file away
    /// once the process has started.
    pub(crate) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock();
        if last.read.is_none_or(|read| read.elapsed() >= PERIOD) {
            if let Ok(header) = read(&self.path) {
                last.header = header;
            }
            last.read = Some(Instant::now());
        }
        let header = last.header.clone();
        request.headers_mut().insert(AUTHORIZATION, header);
        request
    }

    /// Notices that the API server does not take the token: the next request reads the file.
    pub(crate) fn observe<B>(&self, response: &Response<B>) {
        if response.status() == StatusCode::UNAUTHORIZED {
            self.last.lock().read = None;
        }
    }
}

fn read(path: &PathBuf) -> io::Result<HeaderValue> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let text = fs::read_to_string(path)?;
    let token = text.trim();
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

    use tokio::time::advance;

    use super::*;

    fn token(file: &TokenFile) -> String {
        let request = file.authorize(Request::new(()));
        let header = &request.headers()[AUTHORIZATION];
        assert!(header.is_sensitive());
        header.to_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_replaced_is_read_after_a_minute_or_once_it_is_refused() {
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

    #[test]
    fn other_credentials_go_before_a_token_file() {
        let mut auth = AuthInfo {
            token_file: Some("/nowhere".to_owned()),
            username: Some("somebody".to_owned()),
            ..AuthInfo::default()
        };
        assert!(TokenFile::take(&mut auth).unwrap().is_none());
        assert!(auth.token_file.is_some());
    }
}
