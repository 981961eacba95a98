//! The version of the API server, and its clock, from one response.

use http::{Request, StatusCode, Uri, header::DATE};
use http_body_util::{BodyExt as _, Limited};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::client::Body;

use super::{
    subject::Doctor,
    verdict::{Verdict, error, ok, skipped, warning, why},
};
use crate::{
    api::failure::brief,
    config::tls::{SUPPORTED, is_failure},
};

/// Remedy if the API server does not respond.
pub(super) const REACHABLE: &str =
    "check that it runs, and that the address is right (--kubeconfig, --master)";

/// Oldest Kubernetes version 1.x that all tests run on. [`NEWEST`] is the newest.
const OLDEST: u32 = 33;
const NEWEST: u32 = 37;

/// Longest accepted difference between this machine's clock and another one.
pub(super) const MAX_CLOCK_OFFSET: SignedDuration = SignedDuration::from_secs(5);

/// Maximum size of a response, in bytes. The API server sends a few hundred. Another server at the address may send data
/// without end.
const LARGEST: usize = 1 << 20;

/// The response to `/version`, with its time by the local clock and by the API server's.
pub(super) struct Answer {
    status: StatusCode,
    body: Vec<u8>,
    asked: Timestamp,
    answered: Timestamp,
    /// The `Date` header: whole seconds, rounded down.
    date: Option<Timestamp>,
}

/// Requests `/version`.
///
/// # Errors
/// The reason if no response can be read.
pub(super) async fn ask(doctor: &Doctor) -> Result<Answer, String> {
    let asked = doctor.host.now();
    let request = Request::get("/version").body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let answer = doctor.client.send(request).await;
    let answer = answer.map_err(|error| {
        let why = why(&error);
        if why.ends_with(SUPPORTED) {
            why
        } else if is_failure(&error) {
            format!(
                "{why}; check its certificate, and the CA bundle and tls-server-name in the kubeconfig"
            )
        } else {
            format!("{why}; {REACHABLE}")
        }
    })?;
    let answered = doctor.host.now();
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, LARGEST).collect().await;
    let body = body.map_err(|error| format!("{}; {REACHABLE}", brief(&error.to_string())))?;
    let date = parts.headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| rfc2822::parse(date).ok());
    Ok(Answer {
        status: parts.status,
        body: body.to_bytes().into(),
        asked,
        answered,
        date: date.map(|date| date.timestamp()),
    })
}

pub(super) fn version(address: &Uri, answer: &Result<Answer, String>) -> Verdict {
    let address = address.to_string();
    let address = address.trim_end_matches('/');
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => {
            return error(format!("{address}: {why}"));
        }
    };
    if !answer.status.is_success() {
        return error(format!(
            "{address} returned {}; check the credentials in the kubeconfig or the service account token",
            answer.status
        ));
    }
    let Ok(info) = serde_json::from_slice::<Info>(&answer.body) else {
        return error(format!(
            "{address} responds, but is not an API server; check the address"
        ));
    };
    let found = format!("{} at {address}", brief(&info.git_version));
    // Some distributions append a plus sign.
    let minor = info.minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    match (&*info.major, minor.parse::<u32>()) {
        ("1", Ok(OLDEST..=NEWEST)) => ok(found),
        ("1", Ok(minor)) if minor > NEWEST => warning(format!(
            "{found} is newer than 1.{NEWEST}, the latest that this version is tested with: check for a newer version"
        )),
        _ => warning(format!(
            "{found} is not supported: 1.{OLDEST} or later is required"
        )),
    }
}

pub(super) fn clock(answer: &Result<Answer, String>) -> Verdict {
    let Ok(answer) = answer else {
        return skipped("the API server does not answer");
    };
    let Some(date) = answer.date else {
        return skipped("the API server's answer has no date");
    };
    // The minimum difference: the date may have been written at any time during the request.
    let ahead = answer.asked.duration_since(date) - SignedDuration::from_secs(1);
    let behind = date.duration_since(answer.answered);
    let (apart, which) = if ahead > behind {
        (ahead, "ahead of")
    } else {
        (behind, "behind")
    };
    if apart <= MAX_CLOCK_OFFSET {
        return ok(format!("within {MAX_CLOCK_OFFSET:#} of the API server's"));
    }
    let apart = SignedDuration::from_secs(apart.as_secs());
    warning(format!(
        "{apart:#} {which} the API server's: the election does not depend on it, but the validity of certificates and \
         tokens does, and times in the Lease, statuses, events and traces are wrong; synchronize both machines' clocks (NTP)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap_or_default(),
            body: body.into(),
            asked: Timestamp::UNIX_EPOCH,
            answered: Timestamp::UNIX_EPOCH,
            date: None,
        }
    }

    fn at_version(major: &str, minor: &str) -> Answer {
        let info = Info {
            major: major.into(),
            minor: minor.into(),
            git_version: format!("v{major}.{minor}"),
            ..Info::default()
        };
        answer(200, &serde_json::json!(info).to_string())
    }

    #[test]
    fn a_version_is_supported_from_the_oldest_on() {
        let address = Uri::from_static("https://host:6443/");
        let judge = |answer| version(&address, &Ok(answer));
        assert_eq!(
            judge(at_version("1", "33")),
            ok("v1.33 at https://host:6443")
        );
        assert_eq!(
            judge(at_version("1", "36+")),
            ok("v1.36+ at https://host:6443")
        );
        let old = "v1.32 at https://host:6443 is not supported: 1.33 or later is required";
        assert_eq!(judge(at_version("1", "32")), warning(old));
        let new = "v1.38 at https://host:6443 is newer than 1.37, the latest that this version is tested with: check \
                   for a newer version";
        assert_eq!(judge(at_version("1", "38")), warning(new));
        for (status, body, says) in [
            (401, "{}", "https://host:6443 returned 401 Unauthorized; "),
            (
                200,
                "hello",
                "https://host:6443 responds, but is not an API server; ",
            ),
        ] {
            let (grade, text) = judge(answer(status, body));
            assert!(text.starts_with(says), "{text}");
            assert_eq!(grade, super::super::verdict::Grade::Error);
        }
    }

    /// The date is in whole seconds, and its time between request and response is unknown.
    #[test]
    fn a_clock_offset_excludes_the_time_of_the_request() {
        let found = |asked: i64, answered: i64, date: i64| {
            let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
            let answer = Answer {
                asked: at(asked),
                answered: at(answered),
                date: Some(at(date)),
                ..answer(200, "")
            };
            let (grade, text) = clock(&Ok(answer));
            let words: Vec<_> = text.split(" the API").take(1).collect();
            format!("{} {}", grade.word(), words.concat())
        };
        assert_eq!(found(100, 100, 100), "ok within 5s of");
        assert_eq!(found(100, 130, 120), "ok within 5s of");
        assert_eq!(found(100, 100, 105), "ok within 5s of");
        assert_eq!(found(100, 100, 106), "warning 6s behind");
        assert_eq!(found(100, 100, 94), "ok within 5s of");
        assert_eq!(found(190, 199, 100), "warning 1m 29s ahead of");
        assert_eq!(
            clock(&Ok(answer(200, ""))).0,
            super::super::verdict::Grade::Skipped
        );
    }
}
