package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/token"
)

func (c *cli) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make and list the bearer tokens of HTTP",
		Long: `Make and list the bearer tokens of HTTP. The file of the setting http-tokens has a
line with the hash of each token; a node never needs the token itself. The commands
need no node.`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(c.tokenNewCommand(), c.tokenLsCommand())
	return cmd
}

// tokenInfo is a token in the output of token new and token ls.
type tokenInfo struct {
	// Token and Line are only in the output of token new.
	Token   string   `json:"token,omitempty"`
	Line    string   `json:"line,omitempty"`
	Name    string   `json:"name"`
	Scopes  []string `json:"scopes"`
	Tenant  string   `json:"tenant,omitempty"`
	Expires string   `json:"expires,omitempty"`
	Expired bool     `json:"expired,omitempty"`
}

func describeToken(t *token.Token) tokenInfo {
	return tokenInfo{Name: t.Name, Scopes: t.Scopes, Tenant: t.Tenant, Expires: expiry(t), Expired: t.Expired(time.Now())}
}

// expiry returns the time at which a token expires; "" for never.
func expiry(t *token.Token) string {
	if t.Expires.IsZero() {
		return ""
	}
	return t.Expires.UTC().Format(time.RFC3339)
}

func (c *cli) tokenNewCommand() *cobra.Command {
	var t token.Token
	var expires time.Duration
	cmd := c.printing(&cobra.Command{
		Use:   "new",
		Short: "Make a token, and its line for the file http-tokens",
		Long: `Make a token, and print it with the line for the file of the setting http-tokens. The
token is printed only this once: the line has its hash. The command changes no file.

Scopes: read (timers, lists, metrics), write (add, change and cancel timers), admin
(everything but payload; without a tenant it sees the timers of all tenants), payload
(what events carry for their callees, and what these answer).`,
		Example: `  belfry token new --name ci --scope read,write --expires 720h
  belfry token new --name acme-app --scope read,write --tenant acme -o json`,
		Args: exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if err := t.Check(); err != nil {
				return usagef("%v", err)
			}
			if expires > 0 {
				t.Expires = time.Now().Add(expires)
			}
			secret := token.Generate()
			t.Hash = token.HashOf(secret)
			if !c.json() {
				_, err := fmt.Fprintf(c.out, "%s\n%s\n", secret, t.String())
				return err
			}
			info := describeToken(&t)
			info.Token, info.Line = secret, t.String()
			return c.printJSON(info)
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&t.Name, "name", "", "name of the token, unique in the file; errors and the history of timers show it")
	fs.StringSliceVar((*[]string)(&t.Scopes), "scope", nil, "scopes, separated by commas: read, write, admin, payload")
	fs.StringVar(&t.Tenant, "tenant", "", "tenant whose timers the token reaches (default: the default tenant)")
	fs.Var(cmdline.Duration(&expires), "expires", "time after which the token is refused, such as 720h (default: never)")
	return cmd
}

func (c *cli) tokenLsCommand() *cobra.Command {
	file := ""
	cmd := c.printing(&cobra.Command{
		Use:   "ls",
		Short: "List the tokens of a file, without their hashes",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if file == "" {
				return usagef("give the file of the setting http-tokens with --file")
			}
			set, err := readTokenFile(file)
			if err != nil {
				return usagef("--file: %v", err)
			}
			return c.printTokens(set.Tokens())
		},
	})
	cmd.Flags().StringVar(&file, "file", "", "file of the setting http-tokens")
	return cmd
}

// printTokens prints the tokens in columns, or one object per line.
func (c *cli) printTokens(tokens []token.Token) error {
	t := table{c.out, []int{20, 26, 12}}
	if !c.json() {
		if err := t.row("NAME", "SCOPES", "TENANT", "EXPIRES"); err != nil {
			return err
		}
	}
	for i := range tokens {
		var err error
		if info := describeToken(&tokens[i]); c.json() {
			err = c.printJSON(info)
		} else {
			info.Expires = c.zone.show(tokens[i].Expires)
			if info.Expired {
				info.Expires += " (expired)"
			}
			err = t.row(info.Name, strings.Join(info.Scopes, ","), info.Tenant, info.Expires)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readTokenFile reads a file of the setting http-tokens. Its errors never contain a token.
func readTokenFile(path string) (*token.Set, error) {
	f, err := os.Open(path)
	if err != nil {
		if cause, ok := errors.AsType[*os.PathError](err); ok {
			err = cause.Err
		}
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	defer f.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(f, token.MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	set, err := token.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	return set, nil
}
