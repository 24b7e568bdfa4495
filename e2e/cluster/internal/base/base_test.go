package base

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestParseUser(t *testing.T) {
	for in, want := range map[string]User{
		"op=secret":     {Name: "op", Token: "secret", Groups: []string{}},
		"op=secret,a,b": {Name: "op", Token: "secret", Groups: []string{"a", "b"}},
		"system:serviceaccount:ty:op=s": {Name: "system:serviceaccount:ty:op", Token: "s",
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ty"}},
	} {
		got, err := ParseUser(in)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "op", "op=", "=secret"} {
		if _, err := ParseUser(in); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}

func TestIssuedCertificateIsTrusted(t *testing.T) {
	dir := t.TempDir()
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue(dir, "server", pkix.Name{CommonName: "s"}, []string{"kubernetes.default.svc"}, []string{"10.96.0.1"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(dir + "/server.crt")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	for _, name := range []string{"kubernetes.default.svc", "10.96.0.1"} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Error(name, err)
		}
	}
}

func TestTailOfACrashBeginsWithItsCause(t *testing.T) {
	stacks := strings.Repeat("goroutine 1 [running]:\n", 100)
	for log, want := range map[string]string{
		"a\nb\nc\nd\n": "    b\n    c\n    d\n",
		"a\nfatal error: concurrent map writes\n\n" + stacks:       "    fatal error: concurrent map writes\n    \n    goroutine 1 [running]:\n",
		"panic: no\n" + stacks:                                     "    panic: no\n    goroutine 1 [running]:\n    goroutine 1 [running]:\n",
		"SIGSEGV: segmentation violation\nPC=0x0 m=0\n\n" + stacks: "    SIGSEGV: segmentation violation\n    PC=0x0 m=0\n    \n",
		"": "    \n",
	} {
		path := t.TempDir() + "/log"
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(path, 3); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
