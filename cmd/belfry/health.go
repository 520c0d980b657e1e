package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

const (
	// defaultHealthTimeout is below the usual interval of probes.
	defaultHealthTimeout = 5 * time.Second
	// maxHealthAnswer bounds the part of a node's answer that health reads, in bytes.
	maxHealthAnswer = 1 << 20
)

// notReadyError reports that a node answers, but does not serve.
type notReadyError struct{ text string }

func (e *notReadyError) Error() string { return e.text }

func (*notReadyError) Is(target error) bool { return target == cmdline.ErrUnhealthy }

func (c *cli) healthCommand() *cobra.Command {
	s := &settings{}
	live, timeout := false, defaultHealthTimeout
	cmd := c.printing(&cobra.Command{
		Use:   "health",
		Short: "Ask a node on this host whether it is ready",
		Long: `Ask the node on this host whether it is ready, at the address that the setting http has
for "belfry serve" with the same flags, environment and config file. It is the health check of
a container, which needs no other program.

The exit code is 0 if the node is ready, 7 if it is not, and 5 if it does not answer. With
--live it is 0 as soon as the process answers. The command sends no token. If the node has
tokens, the reason is in the node's log alone.`,
		Example: `  belfry health
  belfry health --http 0.0.0.0:8420 --live`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := s.load(c)
			switch {
			case err != nil:
				return err
			case o.HTTP == app.NoHTTP:
				return usagef("the setting http is %s, so the node serves no health check: set an address, such as 127.0.0.1:8420", app.NoHTTP)
			case timeout <= 0:
				return usagef("--timeout must be more than 0")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			path := "/readyz"
			if live {
				path = "/healthz"
			}
			if err := checkHealth(ctx, o, path); err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(map[string]bool{"ok": true})
			}
			return c.printText("node", "ok", "http", o.HTTP)
		},
	})
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the process answers")
	cmd.Flags().Var(cmdline.Duration(&timeout), "timeout", "time limit of the answer")
	s.add(cmd)
	return cmd
}

// checkHealth returns nil if the node answers the path with status 200.
func checkHealth(ctx context.Context, o app.Options, path string) error {
	scheme := "http"
	// The request has no secret, and a certificate rarely names the loopback interface.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	if o.HTTPTLS.Cert != "" {
		scheme = "https"
	}
	// net.Dial connects to this host if the address is that of all interfaces, or has no host.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+o.HTTP+path, nil)
	if err != nil {
		return usagef("http: %v", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return noAnswer(o, err)
	}
	defer resp.Body.Close() //nolint:errcheck // the answer is read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxHealthAnswer))
	switch {
	case err != nil:
		return noAnswer(o, err)
	case resp.StatusCode == http.StatusOK:
		return nil
	}
	return &notReadyError{fmt.Sprintf("the node is not ready (status %d)%s", resp.StatusCode, reasons(body))}
}

func noAnswer(o app.Options, err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op
	}
	return schemas.Errorf(schemas.CodeUnavailable, "no node answers at %s: %v", o.HTTP, err)
}

// reasons returns the conditions that are not met in the body of /readyz, or "" if the node keeps
// them from clients without a token.
func reasons(body []byte) string {
	var r app.Readiness
	if err := json.Unmarshal(body, &r); err != nil {
		return ""
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Checks)) {
		if check := r.Checks[name]; !check.OK {
			list = append(list, name+": "+check.Reason)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return ": " + strings.Join(list, "; ")
}
