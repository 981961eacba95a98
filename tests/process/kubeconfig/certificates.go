// Writes certificates and keys of all kinds into the folder that is named: NAME.crt and NAME.key, and of each authority
// NAME.crt. The API server presents those of servers by SNI, as NAME.test.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func p(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }

func r(bits int) crypto.Signer { return must(rsa.GenerateKey(rand.Reader, bits)) }

func ed() crypto.Signer { return must2(ed25519.GenerateKey(rand.Reader)) }

func must2(_ ed25519.PublicKey, key ed25519.PrivateKey, err error) ed25519.PrivateKey {
	check(err)
	return key
}

func write(name string, blocks ...*pem.Block) {
	var text []byte
	for _, block := range blocks {
		text = append(text, pem.EncodeToMemory(block)...)
	}
	check(os.WriteFile(filepath.Join(os.Args[1], name), text, 0o600))
}

func certificate(cert *x509.Certificate) *pem.Block {
	return &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}
}

func pkcs8(key crypto.Signer) *pem.Block {
	return &pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}
}

// Issues a certificate, by itself where there is no issuer.
func issue(name string, key crypto.Signer, by *pair, change func(*x509.Certificate)) *pair {
	template := &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, big.NewInt(1<<62))),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	if change != nil {
		change(template)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))
	made := &pair{must(x509.ParseCertificate(der)), key}
	write(name+".crt", certificate(made.cert))
	write(name+".key", pkcs8(key))
	return made
}

func authority(template *x509.Certificate) {
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
}

// A server's certificate for NAME.test.
func server(name string, key crypto.Signer, by *pair, change func(*x509.Certificate)) *pair {
	return issue(name, key, by, func(template *x509.Certificate) {
		template.DNSNames = []string{name + ".test"}
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if change != nil {
			change(template)
		}
	})
}

// A certificate of X.509 version 1, which Go does not make.
func version1(name string, key *rsa.PrivateKey, by *pair) {
	type validity struct{ NotBefore, NotAfter time.Time }
	type body struct {
		Serial    *big.Int
		Algorithm pkix.AlgorithmIdentifier
		Issuer    asn1.RawValue
		Validity  validity
		Subject   asn1.RawValue
		PublicKey asn1.RawValue
	}
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}
	subject := pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}
	raw := must(asn1.Marshal(body{
		Serial:    big.NewInt(1),
		Algorithm: algorithm,
		Issuer:    asn1.RawValue{FullBytes: by.cert.RawSubject},
		Validity:  validity{time.Now().Add(-time.Hour).UTC(), time.Now().Add(24 * time.Hour).UTC()},
		Subject:   asn1.RawValue{FullBytes: must(asn1.Marshal(subject.ToRDNSequence()))},
		PublicKey: asn1.RawValue{FullBytes: must(x509.MarshalPKIXPublicKey(key.Public()))},
	}))
	digest := sha256.Sum256(raw)
	signature := must(by.key.Sign(rand.Reader, digest[:], crypto.SHA256))
	der := must(asn1.Marshal(struct {
		Body      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: raw}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}}))
	write(name+".crt", &pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(name+".key", &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

func main() {
	past := func(template *x509.Certificate) {
		template.NotBefore, template.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}
	p256 := func() crypto.Signer { return p(elliptic.P256()) }
	ca := issue("ca", p256(), nil, authority)
	server("p256", p256(), ca, func(template *x509.Certificate) { template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	server("p384", p(elliptic.P384()), ca, nil)
	server("p521", p(elliptic.P521()), ca, nil)
	server("ed25519", ed(), ca, nil)
	server("rsa1024", r(1024), ca, nil)
	server("rsa2048", r(2048), ca, nil)
	server("expired", p256(), ca, past)
	server("early", p256(), ca, func(template *x509.Certificate) { template.NotBefore = time.Now().Add(time.Hour) })
	server("elsewhere", p256(), ca, func(template *x509.Certificate) { template.DNSNames = []string{"another.test"} })
	server("common-name", p256(), ca, func(template *x509.Certificate) {
		template.DNSNames, template.Subject.CommonName = nil, "common-name.test"
	})
	server("wildcard", p256(), ca, func(template *x509.Certificate) { template.DNSNames = []string{"*.test"} })
	server("for-clients", p256(), ca, func(template *x509.Certificate) {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	})
	middle := issue("middle", p256(), ca, authority)
	chained := server("chained", p256(), middle, nil)
	write("chained.crt", certificate(chained.cert), certificate(middle.cert))
	server("unchained", p256(), middle, nil)

	self := func(name string, change func(*x509.Certificate)) {
		server(name, p256(), nil, func(template *x509.Certificate) {
			authority(template)
			if change != nil {
				change(template)
			}
		})
	}
	self("self", nil)
	self("self-expired", past)
	self("self-elsewhere", func(template *x509.Certificate) { template.DNSNames = []string{"another.test"} })
	server("self-no-ca", p256(), nil, nil)

	sha512 := func(template *x509.Certificate) { template.SignatureAlgorithm = x509.ECDSAWithSHA512 }
	server("by-p384-sha512", p256(), issue("ca-p384", p(elliptic.P384()), nil, authority), sha512)
	server("by-p521", p256(), issue("ca-p521", p(elliptic.P521()), nil, authority), nil)
	byRsa := issue("ca-rsa", r(2048), nil, authority)
	server("by-rsa-pss", p256(), byRsa, func(template *x509.Certificate) {
		template.SignatureAlgorithm = x509.SHA256WithRSAPSS
	})
	within := func(domain string) *pair {
		return issue("ca-"+domain, p256(), nil, func(template *x509.Certificate) {
			authority(template)
			template.PermittedDNSDomains, template.PermittedDNSDomainsCritical = []string{domain}, true
		})
	}
	server("permitted", p256(), within("test"), nil)
	server("forbidden", p256(), within("example"), nil)

	clients := issue("ca-clients", p256(), nil, authority)
	client := func(name string, key crypto.Signer, change func(*x509.Certificate)) {
		issue(name, key, clients, func(template *x509.Certificate) {
			template.Subject = pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			if change != nil {
				change(template)
			}
		})
	}
	client("client-p256", p256(), nil)
	client("client-p384", p(elliptic.P384()), nil)
	client("client-p521", p(elliptic.P521()), nil)
	client("client-ed25519", ed(), nil)
	client("client-rsa1024", r(1024), nil)
	client("client-expired", p256(), past)
	pkcs1 := r(2048)
	client("client-pkcs1", pkcs1, nil)
	write("client-pkcs1.key", &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(pkcs1.(*rsa.PrivateKey))})
	sec1 := p256()
	client("client-sec1", sec1, nil)
	curve := must(asn1.Marshal(asn1.ObjectIdentifier{1, 2, 840, 10045, 3, 1, 7}))
	key := must(x509.MarshalECPrivateKey(sec1.(*ecdsa.PrivateKey)))
	write("client-sec1.key", &pem.Block{Type: "EC PARAMETERS", Bytes: curve}, &pem.Block{Type: "EC PRIVATE KEY", Bytes: key})
	locked := r(2048)
	client("client-encrypted", locked, nil)
	plain := x509.MarshalPKCS1PrivateKey(locked.(*rsa.PrivateKey))
	write("client-encrypted.key", must(x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", plain, []byte("secret"), x509.PEMCipherAES256)))
	version1("client-v1", r(2048).(*rsa.PrivateKey), clients)
}
