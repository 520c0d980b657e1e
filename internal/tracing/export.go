package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of the exporter.
const (
	// maxAnswer bounds the bytes that are read of an answer.
	maxAnswer = 64 << 10
	// retryPause is the pause after the first failed request for a batch; it doubles up to
	// maxRetryPause, which also bounds Retry-After.
	retryPause    = time.Second
	maxRetryPause = 10 * time.Second
)

// exporter posts batches to an OTLP receiver.
type exporter struct {
	url       string
	headers   map[string]string
	gzip      bool
	userAgent string
	client    *http.Client
	transport *http.Transport
}

func newExporter(c Config, n Node) (*exporter, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	var err error
	if transport.TLSClientConfig, err = c.tls(); err != nil {
		return nil, err
	}
	return &exporter{
		url: c.Endpoint, headers: c.Headers, gzip: c.Gzip, userAgent: "belfry/" + n.Version, transport: transport,
		client: &http.Client{
			Transport: transport, Timeout: c.Timeout,
			// The headers may hold credentials, so they go only to the endpoint.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// tls returns the TLS configuration. Errors: schemas.CodeConfig.
func (c *Config) tls() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	ca, err := readFile(c.CA)
	if err != nil {
		return nil, schemas.Errorf(schemas.CodeConfig, "OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
	}
	if ca != nil {
		out.RootCAs = x509.NewCertPool()
		if roots, err := x509.SystemCertPool(); err == nil {
			out.RootCAs = roots
		}
		if !out.RootCAs.AppendCertsFromPEM(ca) {
			return nil, schemas.Errorf(schemas.CodeConfig, "OTEL_EXPORTER_OTLP_CERTIFICATE: %s has no certificate in PEM form", c.CA)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, schemas.Errorf(schemas.CodeConfig, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// send implements sender. It repeats a request that OTLP calls retryable until ctx ends.
func (e *exporter) send(ctx context.Context, spans []sdktrace.ReadOnlySpan) (int64, error) {
	body, err := e.body(spans)
	if err != nil {
		return 0, err
	}
	for pause := retryPause; ; pause = min(2*pause, maxRetryPause) {
		rejected, after, err := e.post(ctx, body)
		if err == nil || after < 0 {
			return rejected, err
		}
		wait := time.NewTimer(max(pause, min(after, maxRetryPause)))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return 0, err
		}
	}
}

func (e *exporter) body(spans []sdktrace.ReadOnlySpan) ([]byte, error) {
	plain := encode(spans)
	if !e.gzip {
		return plain, nil
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// post makes one request. after is the minimum pause before the request is repeated; negative if it
// must not be repeated. Errors contain no headers and no credentials.
func (e *exporter) post(ctx context.Context, body []byte) (refused int64, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return 0, -1, errors.New("the endpoint is not a URL") // New has checked it
	}
	for name, value := range e.headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", e.userAgent)
	if e.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := e.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return 0, 0, err
	}
	defer func() { _ = resp.Body.Close() }() // nothing is lost if closing fails
	answer, readErr := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch code := resp.StatusCode; {
	case code >= 200 && code <= 299:
		if readErr != nil {
			return 0, -1, nil // the spans are taken
		}
		return rejected(answer), 0, nil
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return 0, retryAfter(resp.Header.Get("Retry-After")), fmt.Errorf("the receiver answered HTTP status %d", code)
	default:
		return 0, -1, fmt.Errorf("the receiver answered HTTP status %d", code)
	}
}

// retryAfter reads the header Retry-After in seconds; 0 for none.
func retryAfter(text string) time.Duration {
	seconds, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// close implements sender.
func (e *exporter) close() { e.transport.CloseIdleConnections() }
