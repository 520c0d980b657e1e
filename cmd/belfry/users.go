package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/belfryio/belfry/internal/app"
)

// maxPasswordFileBytes bounds a file with one password or token.
const maxPasswordFileBytes = 4096

// hiddenSecret replaces a secret in the output of config print.
const hiddenSecret = "(hidden)"

// readSecretFile returns the only line of a file. Its errors never contain the line.
func readSecretFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(f, maxPasswordFileBytes+1))
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", err
	case len(b) > maxPasswordFileBytes:
		return "", fmt.Errorf("%s has more than %d bytes", path, maxPasswordFileBytes)
	case text == "" || strings.ContainsAny(text, "\r\n"):
		return "", fmt.Errorf("%s must contain exactly one line with the secret", path)
	}
	return text, nil
}

// secretOf reads a secret from the file of a setting, or else from an environment
// variable; "" if neither is given.
func secretOf(getenv func(string) string, setting, path, variable string) (string, error) {
	if path == "" {
		return getenv(variable), nil
	}
	secret, err := readSecretFile(path)
	if err != nil {
		return "", usagef("%s: %v", setting, err)
	}
	return secret, nil
}

// readSecrets reads secrets from files or the environment. There are no flags for them,
// because other users can see the flags of a process.
func (s *settings) readSecrets(getenv func(string) string) error {
	o := &s.app
	if err := s.readTokens(getenv); err != nil {
		return err
	}
	password, err := secretOf(getenv, "password-file", s.passwordFile, "BELFRY_PASSWORD")
	if err != nil {
		return err
	}
	if o.User != "" { // without a user the variable may be for another program
		o.Password = password
	}
	o.SecretFiles = append(o.SecretFiles, s.passwordFile, s.tokenFile)
	o.Token, err = secretOf(getenv, "token-file", s.tokenFile, "BELFRY_TOKEN")
	return err
}

// readTokens reads the tokens of HTTP.
func (s *settings) readTokens(getenv func(string) string) (err error) {
	o := &s.app
	if s.httpTokenFile != "" {
		s.files.note(s.httpTokenFile)
	}
	if o.HTTPToken, err = secretOf(getenv, "http-token-file", s.httpTokenFile, "BELFRY_HTTP_TOKEN"); err != nil {
		return err
	}
	o.SecretFiles = append(o.SecretFiles, s.httpTokenFile, s.httpTokens)
	if s.httpTokens == "" {
		return nil
	}
	s.files.note(s.httpTokens)
	if o.HTTPTokens, err = readTokenFile(s.httpTokens); err != nil {
		return usagef("http-tokens: %v", err)
	}
	return nil
}

// readUsers reads the users of the embedded server: the user that the flags name, and
// those in the config file.
func (s *settings) readUsers(getenv func(string) string, file map[string]any) error {
	o := &s.app
	if s.natsPasswordFile != "" && s.natsUser == "" {
		return usagef("nats-password-file needs nats-user")
	}
	if s.natsUser != "" {
		password, err := secretOf(getenv, "nats-password-file", s.natsPasswordFile, "BELFRY_NATS_PASSWORD")
		if err != nil {
			return err
		}
		if password == "" {
			return usagef("nats-user needs nats-password-file, or the environment variable BELFRY_NATS_PASSWORD")
		}
		o.Users = append(o.Users, app.User{Name: s.natsUser, Password: password, Admin: true})
		o.SecretFiles = append(o.SecretFiles, s.natsPasswordFile)
	}
	value := file[keyUsers]
	if value == nil || s.flagged["nats-url"] {
		return nil
	}
	where := "config file " + s.config + ": " + keyUsers
	list, ok := value.([]any)
	if !ok {
		return usagef("%s: must be a list of users, each with name, password-file and services or admin", where)
	}
	for i, item := range list {
		group, ok := item.(map[string]any)
		if !ok {
			return usagef("%s: user %d must be a group of settings", where, i+1)
		}
		u, err := s.readUser(getenv, group)
		if err != nil {
			return usagef("%s: user %d: %v", where, i+1, err)
		}
		o.Users = append(o.Users, u)
		s.listedUsers = append(s.listedUsers, u)
	}
	return nil
}

// readUser reads one user of the list. Its errors never contain a password.
func (s *settings) readUser(getenv func(string) string, group map[string]any) (app.User, error) {
	var u app.User
	given := 0
	for key, value := range group {
		text, isText := value.(string)
		var ok bool
		switch key {
		case "name":
			u.Name, ok = text, isText
		case "admin":
			u.Admin, ok = value.(bool)
		case "services":
			var err error
			u.Services, err = texts(value)
			ok = err == nil
		case "password":
			given++
			u.Password, ok = text, isText
			if text == hiddenSecret {
				return u, errors.New("password: this is the placeholder that config print shows; write the password itself")
			}
			s.configSecret = true
		case "password-env":
			given++
			if u.Password, ok = getenv(text), isText; ok && u.Password == "" {
				return u, fmt.Errorf("password-env: the environment variable %s is empty", text)
			}
		case "password-file":
			given++
			var err error
			if u.Password, err = readSecretFile(text); isText && err != nil {
				return u, fmt.Errorf("password-file: %w", err)
			}
			ok = isText
			s.app.SecretFiles = append(s.app.SecretFiles, text)
		default:
			return u, fmt.Errorf("unknown key %s; a user has name, password-file, password-env or password, and services or admin", key)
		}
		if !ok {
			return u, fmt.Errorf("%s: the value has the wrong type", key)
		}
	}
	if given != 1 {
		return u, errors.New("give exactly one of password-file, password-env and password")
	}
	return u, nil
}

// printedUsers returns the users of the list without passwords, for config print.
func (s *settings) printedUsers() []map[string]any {
	var out []map[string]any
	for _, u := range s.listedUsers {
		m := map[string]any{"name": u.Name, "password": hiddenSecret}
		if u.Admin {
			m["admin"] = true
		} else {
			m["services"] = u.Services
		}
		out = append(out, m)
	}
	return out
}
