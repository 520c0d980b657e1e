package cmdline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

// The exit codes. They are part of the interface: add, never renumber.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitRefused     = 4
	ExitUnreachable = 5
	ExitInUse       = 6
	ExitUnhealthy   = 7
	ExitDiffers     = 8
)

// ErrDiffers makes a command exit with ExitDiffers. Report prints nothing for it.
var ErrDiffers = errors.New("differs")

// ErrDrift makes a command exit with ExitNotFound. Report prints nothing for it.
var ErrDrift = errors.New("drift")

// ErrUnhealthy makes a command exit with ExitUnhealthy.
var ErrUnhealthy = errors.New("unhealthy")

// ExitCode returns the exit code for an error, ExitOK for nil.
func ExitCode(err error) int {
	var usage *UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		return ExitUsage
	case errors.Is(err, ErrUnhealthy):
		return ExitUnhealthy
	case errors.Is(err, ErrDiffers):
		return ExitDiffers
	case errors.Is(err, ErrDrift):
		return ExitNotFound
	case errors.Is(err, app.ErrInUse):
		return ExitInUse
	case errors.Is(err, app.ErrUnreachable), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoServers), errors.Is(err, context.DeadlineExceeded):
		return ExitUnreachable
	}
	switch schemas.CodeOf(err) {
	case "":
		return ExitFailure
	case schemas.CodeConfig:
		return ExitUsage
	case schemas.CodeNotFound:
		return ExitNotFound
	case schemas.CodeUnavailable:
		return ExitUnreachable
	case schemas.CodeUnknownFormat, schemas.CodeDamaged:
		return ExitFailure
	}
	return ExitRefused
}

// CodeNames are the values of "code" in a JSON error that has no code of Belfry's own.
var CodeNames = map[int]string{ExitFailure: "failure", ExitUsage: "usage", ExitNotFound: "not_found", ExitRefused: "refused", ExitUnreachable: "unavailable", ExitInUse: "in_use", ExitUnhealthy: "unhealthy"}

// Report writes an error as one line to w, in the format of --output, and returns the
// exit code. It writes nothing for a nil error, ErrDiffers and ErrDrift.
func Report(w io.Writer, program, format string, err error) int {
	code := ExitCode(err)
	if code == ExitOK || code == ExitDiffers || errors.Is(err, ErrDrift) {
		return code
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
	if format != FormatJSON {
		fmt.Fprintf(w, "%s: %s\n", program, text) //nolint:errcheck // stderr is the last resort
		return code
	}
	name := string(schemas.CodeOf(err))
	if name == "" {
		name = CodeNames[code]
	}
	b, jerr := json.Marshal(map[string]any{"error": map[string]string{"code": name, "message": text}})
	if jerr != nil {
		b = []byte(text) // a map of strings always encodes
	}
	fmt.Fprintf(w, "%s\n", b) //nolint:errcheck // stderr is the last resort
	return code
}
