#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it cannot test"
)]

use std::net::Ipv6Addr;

use super::*;
use crate::Config;
use crate::app::tests::APP;

/// Both addresses, as they are by default, on a port that is free.
fn defaults() -> [SocketAddr; 2] {
    let http = Config::shipped(&APP).http;
    [http.addr.unwrap(), http.metrics_addr].map(|addr| SocketAddr::new(addr.ip(), 0))
}

/// By default a pod is reached by either family, whatever its cluster has.
#[tokio::test]
async fn both_families_are_served_by_default() {
    for addr in defaults() {
        let listener = listen("http.addr", addr, bind).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        if let Err(error) = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
            eprintln!("NOT TESTED: this machine has no IPv6, not even ::1 ({error})");
            continue;
        }
        TcpStream::connect((Ipv6Addr::LOCALHOST, port))
            .await
            .unwrap();
    }
}

/// Where the kernel has no IPv6, the default is all of IPv4; any other failure, or address, is what it is.
#[tokio::test]
async fn without_ipv6_the_default_is_ipv4() {
    use rustix::io::Errno;
    let failing = |errno: Errno| {
        move |addr: SocketAddr| match addr {
            SocketAddr::V6(_) => Err(errno.into()),
            SocketAddr::V4(_) => bind(addr),
        }
    };
    for addr in defaults() {
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            let listener = listen("http.addr", addr, failing(errno)).unwrap();
            let bound = listener.local_addr().unwrap();
            assert_eq!(bound.ip(), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        }
        let taken = listen("http.addr", addr, failing(Errno::ADDRINUSE)).unwrap_err();
        assert!(
            taken
                .to_string()
                .starts_with("http.addr: cannot listen on [::]:0: ")
        );
    }
    let one = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    listen("http.addr", one, failing(Errno::ADDRNOTAVAIL)).unwrap_err();
}

/// Whoever has the most connections loses the oldest of them; among equals the oldest of all goes.
#[test]
fn a_crowd_makes_way_for_the_others() {
    let peers = |text: &str| {
        let peers: Vec<_> = text.bytes().map(|b| IpAddr::from([10, 0, 0, b])).collect();
        crowding(peers.into_iter())
    };
    assert_eq!(peers("abbb"), Some(1));
    assert_eq!(peers("babab"), Some(0));
    assert_eq!(peers("cabab"), Some(1));
    assert_eq!(peers("abc"), Some(0));
    assert_eq!(peers(""), None);
}
