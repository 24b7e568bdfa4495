package base

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// API is the minimal Kubernetes client that starting a cluster needs.
type API struct {
	Server string
	Token  string
	client *http.Client
}

// NewAPI makes a client that trusts the CA and sends the token.
func NewAPI(server string, ca []byte, token string) *API {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &API{Server: server, Token: token, client: &http.Client{
		Timeout: 3 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots},
			ForceAttemptHTTP2: true,
			// A packet is lost if the other side has no network yet, and the
			// kernel would resend it only after a second.
			DialContext: (&net.Dialer{Timeout: 300 * time.Millisecond}).DialContext,
		},
	}}
}

// Close drops the connections.
func (a *API) Close() { a.client.CloseIdleConnections() }

// Do sends a request and decodes the response into out, unless that is nil.
// The status is 0 without a response.
func (a *API) Do(ctx context.Context, method, path string, in, out any) (status int, err error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.Server+path, body)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "trainyard-node")
	res, err := a.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err
	}
	if res.StatusCode >= 300 {
		return res.StatusCode, fmt.Errorf("%s %s: %s: %s", method, path, res.Status, bytes.TrimSpace(data))
	}
	if out != nil {
		return res.StatusCode, json.Unmarshal(data, out)
	}
	return res.StatusCode, nil
}

// Exists reports whether a GET of the path succeeds.
func (a *API) Exists(ctx context.Context, path string) bool {
	_, err := a.Do(ctx, http.MethodGet, path, nil, nil)
	return err == nil
}
