#!/usr/bin/env bash
# rustls 0.23.46: a client certificate of X.509 version 1, as `openssl x509 -req` of OpenSSL 3.0 makes.
# Expected: rustls presents it, since the server verifies it, and a server in Go accepts it; or an error that names the client
# certificate.
# Seen: `with_client_auth_cert` parses the certificate to compare it with the key, and returns "invalid peer certificate"
# before there is a peer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir go rust rust/src
cat >go/main.go <<'GO'
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"time"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A certificate of X.509 version 1 has neither the field of the version nor extensions.
type validity struct{ NotBefore, NotAfter time.Time }
type tbs struct {
	SerialNumber *big.Int
	Algorithm    pkix.AlgorithmIdentifier
	Issuer       asn1.RawValue
	Validity     validity
	Subject      pkix.RDNSequence
	PublicKey    asn1.RawValue
}
type certificate struct {
	TBS       asn1.RawValue
	Algorithm pkix.AlgorithmIdentifier
	Signature asn1.BitString
}

func main() {
	from, to := time.Now().Add(-time.Hour).UTC().Truncate(time.Second), time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	caKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca := must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, caKey.Public(), caKey))))

	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}} // ecdsa-with-SHA256
	signed := must(asn1.Marshal(tbs{
		big.NewInt(2), algorithm, asn1.RawValue{FullBytes: ca.RawSubject}, validity{from, to},
		pkix.Name{CommonName: "client"}.ToRDNSequence(),
		asn1.RawValue{FullBytes: must(x509.MarshalPKIXPublicKey(key.Public()))},
	}))
	hash := sha256.Sum256(signed)
	signature := must(ecdsa.SignASN1(rand.Reader, caKey, hash[:]))
	der := must(asn1.Marshal(certificate{asn1.RawValue{FullBytes: signed}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}}))

	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))})
	if err := os.WriteFile("client.crt", certPEM, 0o600); err != nil {
		panic(err)
	}
	if err := os.WriteFile("client.key", keyPEM, 0o600); err != nil {
		panic(err)
	}

	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		peer := request.TLS.PeerCertificates[0]
		fmt.Printf("Go: server verified %s, version %d\n", peer.Subject.CommonName, peer.Version)
	}))
	clients := x509.NewCertPool()
	clients.AddCert(ca)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{must(tls.X509KeyPair(certPEM, keyPEM))}
	fmt.Println("Go: answer", must(client.Get(server.URL)).Status)
}
GO
(cd go && go run main.go) | tee seen

cat >rust/Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2024"
[dependencies]
rustls = { version = "=0.23.46", default-features = false, features = ["std", "ring"] }
rustls-webpki = { version = "=0.103.16", default-features = false }
[workspace]
TOML
cat >rust/src/main.rs <<'RUST'
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

fn main() {
    let certificate = CertificateDer::from_pem_file("../go/client.crt").unwrap();
    let key = PrivateKeyDer::from_pem_file("../go/client.key").unwrap();
    let builder = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
    println!("rustls: {}", builder.with_client_auth_cert(vec![certificate], key).unwrap_err());
}
RUST
(cd rust && cargo run --quiet) | tee -a seen
diff seen - <<'TEXT' || { echo 'changed'; exit 1; }
Go: server verified client, version 1
Go: answer 200 OK
rustls: invalid peer certificate: Other(OtherError(UnsupportedCertVersion))
TEXT
echo 'as described: rustls refuses its own certificate, and calls it the one of the peer'
