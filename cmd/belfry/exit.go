package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

// The exit codes. They are part of the interface: add, never renumber.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitUnreachable = 5
	exitInUse       = 6
	exitUnhealthy   = 7
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What each exit code says",
		Long: fmt.Sprintf(`Exit codes:

  %d  done
  %d  failed for another reason than those below
  %d  usage: a flag, an argument, the config file or the server's set-up is wrong;
     nothing was done
  %d  not found: no such timer or dead letter, or its record has expired
  %d  refused by Belfry: an invalid event, an id that is taken, too late to cancel,
     storage full
  %d  unreachable: no NATS server, or nobody there serves Belfry's API, or no answer
     in time; a change may have taken effect if the answer was lost, and it is safe
     to repeat
  %d  in use: the address or the data folder belongs to another process
  %d  unhealthy: belfry doctor or belfry repair found something that must be repaired

The reason is one line on stderr; with -o json it is {"error":{"code","message"}}.`,
			exitOK, exitFailure, exitUsage, exitNotFound, exitRefused, exitUnreachable, exitInUse, exitUnhealthy),
	}
}

// usageError is a mistake of the caller that Belfry was not asked about.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// exitCode sorts an error.
func exitCode(err error) int {
	var usage *usageError
	var unhealthy *unhealthyError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unhealthy):
		return exitUnhealthy
	case errors.Is(err, app.ErrInUse):
		return exitInUse
	case errors.Is(err, app.ErrUnreachable), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoServers), errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	}
	switch schemas.CodeOf(err) {
	case "":
		return exitFailure
	case schemas.CodeConfig:
		return exitUsage
	case schemas.CodeNotFound:
		return exitNotFound
	case schemas.CodeUnavailable:
		return exitUnreachable
	case schemas.CodeUnknownFormat, schemas.CodeDamaged:
		return exitFailure
	}
	return exitRefused
}

// codeNames are what "code" says in JSON where Belfry's own code does not.
var codeNames = map[int]string{exitFailure: "failure", exitUsage: "usage", exitNotFound: "not_found", exitRefused: "refused", exitUnreachable: "unavailable", exitInUse: "in_use", exitUnhealthy: "unhealthy"}

// report prints an error as one line and returns the exit code.
func (c *cli) report(err error) int {
	code := exitCode(err)
	if code == exitOK {
		return exitOK
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
	if c.format != formatJSON {
		fmt.Fprintf(c.err, "belfry: %s\n", text) //nolint:errcheck // stderr is the last resort
		return code
	}
	name := string(schemas.CodeOf(err))
	if name == "" {
		name = codeNames[code]
	}
	b, jerr := json.Marshal(map[string]any{"error": map[string]string{"code": name, "message": text}})
	if jerr != nil {
		b = []byte(text) // a map of strings always encodes
	}
	fmt.Fprintf(c.err, "%s\n", b) //nolint:errcheck // stderr is the last resort
	return code
}
