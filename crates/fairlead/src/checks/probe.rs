//! One check of a server: connect, ask, read the answer.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use fairlead_check::{Check, Kind, StatusRange};
use fairlead_splice::config::ProxyVersion;
use futures_util::StreamExt;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Of a body, this many bytes are searched for what is expected.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Of an answer's head, bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 128;

/// PROXY headers that speak for the sender itself (specification, sections 2.1 and 2.2).
const PROXY_V1: &[u8] = b"PROXY UNKNOWN\r\n";
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// Checks a server. What is wrong with it, in a few words.
pub(super) async fn probe(
    server: SocketAddr,
    check: &Check,
    proxy: Option<ProxyVersion>,
) -> Result<(), String> {
    match tokio::time::timeout(check.timeout, ask(server, check, proxy)).await {
        Ok(outcome) => outcome,
        Err(_) => Err("timed out".to_owned()),
    }
}

async fn ask(server: SocketAddr, check: &Check, proxy: Option<ProxyVersion>) -> Result<(), String> {
    let failed = |error: std::io::Error| error.kind().to_string();
    let mut stream = TcpStream::connect(server).await.map_err(failed)?;
    let header: &[u8] = match proxy {
        None => &[],
        Some(ProxyVersion::V1) => PROXY_V1,
        Some(ProxyVersion::V2) => PROXY_V2,
    };
    stream.write_all(header).await.map_err(failed)?;
    match &check.kind {
        Kind::Tcp => Ok(()),
        Kind::Tls { sni, alpn } => {
            let sni = sni.clone().unwrap_or_else(|| server.ip().to_string());
            tls(stream, sni, alpn.as_deref()).await
        }
        Kind::Http {
            method,
            path,
            host,
            expect_status,
            expect_body,
        } => {
            let host = host.clone().unwrap_or_else(|| server.to_string());
            let request = Request::builder()
                .method(method.as_str())
                .uri(path)
                .header("Host", host)
                .header("User-Agent", "fairlead-check")
                .header("Connection", "close")
                .body(Body::empty())
                .map_err(|error| error.to_string())?;
            http(stream, request, expect_status, expect_body.as_deref()).await
        }
    }
}

async fn http(
    stream: TcpStream,
    request: Request<Body>,
    expect_status: &[StatusRange],
    expect_body: Option<&str>,
) -> Result<(), String> {
    let failed = |error: hyper::Error| match error.is_parse() {
        true => "no HTTP answer".to_owned(),
        false => format!("no answer: {error}"),
    };
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // Both in this task, so that nothing is left of a check that timed out.
    let answer = async {
        let answer = sender.send_request(request).await.map_err(failed)?;
        let status = answer.status().as_u16();
        if !expect_status.iter().any(|range| range.contains(status)) {
            return Err(format!("HTTP {status}"));
        }
        let Some(expected) = expect_body else {
            return Ok(());
        };
        let mut parts = Body::new(answer.into_body()).into_data_stream();
        let mut body = Vec::new();
        while body.len() < BODY_BYTES_MAX
            && let Some(Ok(part)) = parts.next().await
        {
            body.extend_from_slice(&part);
        }
        body.truncate(BODY_BYTES_MAX);
        match contains(&body, expected.as_bytes()) {
            true => Ok(()),
            false => Err("the body lacks what is expected".to_owned()),
        }
    };
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        outcome = &mut answer => outcome,
        // The connection has ended; what came of the answer is in its queue.
        _ = &mut connection => answer.await,
    }
}

fn contains(body: &[u8], expected: &[u8]) -> bool {
    body.windows(expected.len()).any(|part| part == expected)
}

async fn tls(stream: TcpStream, sni: String, alpn: Option<&str>) -> Result<(), String> {
    let mut config = client_config()?.as_ref().clone();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(sni).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await;
    let stream = stream.map_err(|error| format!("TLS: {error}"))?;
    let agreed = stream.get_ref().1.alpn_protocol();
    match alpn {
        Some(wanted) if agreed != Some(wanted.as_bytes()) => {
            Err(format!("the server does not agree to ALPN {wanted}"))
        }
        _ => Ok(()),
    }
}

/// A client that takes any certificate: it asks whether the server answers, not who it is.
fn client_config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    let made = || {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let any = Arc::new(AnyCertificate(provider));
        let config = builder.dangerous().with_custom_certificate_verifier(any);
        Ok(Arc::new(config.with_no_client_auth()))
    };
    CONFIG.get_or_init(made).clone()
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    /// Checks a server that answers each connection with these bytes and closes it.
    fn outcome(
        answer: &'static [u8],
        check: &Check,
        proxy: Option<ProxyVersion>,
    ) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 1_024];
            let count = stream.read(&mut asked).unwrap_or(0);
            let _ = stream.write_all(answer);
            asked[..count].to_vec()
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let outcome = runtime.block_on(probe(address, check, proxy));
        let asked = server.join().unwrap();
        if proxy == Some(ProxyVersion::V1) {
            assert!(asked.starts_with(PROXY_V1), "{asked:?}");
        }
        outcome
    }

    fn http_check(body: Option<&str>) -> Check {
        let Kind::Http {
            method,
            path,
            host,
            expect_status,
            ..
        } = Kind::http()
        else {
            unreachable!()
        };
        Check {
            kind: Kind::Http {
                method,
                path,
                host,
                expect_status,
                expect_body: body.map(str::to_owned),
            },
            timeout: Duration::from_secs(5),
            ..Check::default()
        }
    }

    #[test]
    fn an_answer_passes_by_its_status_and_its_body() {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready";
        let told = |answer, body: Option<&str>| outcome(answer, &http_check(body), None);
        assert_eq!(told(ok, None), Ok(()));
        assert_eq!(told(ok, Some("ead")), Ok(()));
        assert_eq!(
            told(ok, Some("steady")),
            Err("the body lacks what is expected".into())
        );
        let bad = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(told(bad, None), Err("HTTP 503".into()));
        assert!(outcome(ok, &http_check(None), Some(ProxyVersion::V1)).is_ok());
    }

    #[test]
    fn nonsense_and_silence_fail() {
        let told = |answer| outcome(answer, &http_check(None), None);
        for nonsense in [
            &b""[..],
            b"SSH-2.0-x\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            &[0; 70_000],
        ] {
            assert!(told(nonsense).is_err(), "{nonsense:?}");
        }
        let tls = Check {
            kind: Kind::Tls {
                sni: None,
                alpn: None,
            },
            ..Check::default()
        };
        assert!(outcome(b"HTTP/1.1 400 Bad Request\r\n\r\n", &tls, None).is_err());
    }

    #[test]
    fn a_server_that_sends_byte_after_byte_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let check = Check {
            timeout: Duration::from_millis(200),
            ..http_check(None)
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let begun = std::time::Instant::now();
        let outcome = runtime.block_on(probe(address, &check, None));
        assert!(outcome.is_err() && begun.elapsed() < Duration::from_secs(3));
        server.join().unwrap();
    }

    #[test]
    fn a_handshake_is_enough_for_tcp_and_a_refusal_fails() {
        let tcp = Check::default();
        assert_eq!(outcome(b"", &tcp, None), Ok(()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let refused = runtime.block_on(probe(address, &tcp, None));
        assert_eq!(refused, Err("connection refused".to_owned()));
    }
}
