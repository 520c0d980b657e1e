package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/functions/httpcall"
)

// serviceReader reads the group of one service in the config file, and the files and
// environment variables that it names. Its errors never contain a value.
type serviceReader struct {
	getenv func(string) string
	config functions.ServiceConfig
	// files are the files that were read. If one changes, the configuration changes.
	files fileStamps
	// inline is true if the config file itself has a secret. secretFiles are other files with
	// secrets.
	inline      bool
	secretFiles []string
}

// serviceKeys maps each setting of a service to the function that reads its value.
var serviceKeys = map[string]func(*serviceReader, any) error{
	"concurrency":        (*serviceReader).concurrency,
	"secret":             (*serviceReader).secret,
	"secrets":            (*serviceReader).secretList,
	"secret-file":        (*serviceReader).secretFile,
	"secret-env":         (*serviceReader).secretEnv,
	"headers":            (*serviceReader).headers,
	"mode":               (*serviceReader).mode,
	"permanent-statuses": (*serviceReader).permanent,
	keyWebhookOrigin:     (*serviceReader).webhookOrigin,
	"base-url":           (*serviceReader).baseURL,
	"tls-ca":             func(r *serviceReader, v any) error { return r.pem(v, &r.config.PEM.CA) },
	"tls-cert":           func(r *serviceReader, v any) error { return r.pem(v, &r.config.PEM.Cert) },
	"tls-key":            func(r *serviceReader, v any) error { return r.pem(v, &r.config.PEM.Key) },
	"subjects":           func(r *serviceReader, v any) error { return r.list(v, &r.config.Subjects) },
	"hosts":              func(r *serviceReader, v any) error { return r.list(v, &r.config.Hosts) },
}

// maxSecretFileBytes bounds the size of a file with secrets or a certificate.
const maxSecretFileBytes = 1 << 20

func (r *serviceReader) read(key string, value any) error {
	read := serviceKeys[key]
	if read == nil {
		return fmt.Errorf("unknown key; the keys of a service are %s", strings.Join(slices.Sorted(maps.Keys(serviceKeys)), ", "))
	}
	return read(r, value)
}

func (r *serviceReader) concurrency(v any) error {
	n, ok := v.(int)
	if !ok || n < 1 {
		return errors.New("must be a number, 1 or more")
	}
	r.config.Concurrency = n
	return nil
}

func (r *serviceReader) secret(v any) error {
	s, ok := v.(string)
	if !ok || s == "" {
		return errors.New("must be a string such as whsec_…")
	}
	r.config.Secrets = append(r.config.Secrets, s)
	r.inline = true
	return nil
}

func (r *serviceReader) secretList(v any) error {
	list, ok := v.([]any)
	if !ok {
		return errors.New("must be a list of strings such as whsec_…")
	}
	for _, v := range list {
		if s, ok := v.(string); !ok || s == "" {
			return errors.New("must be a list of strings such as whsec_…")
		}
		if err := r.secret(v); err != nil {
			return err
		}
	}
	return nil
}

// secretFile reads secrets from files, one a line.
func (r *serviceReader) secretFile(v any) error {
	paths, err := texts(v)
	if err != nil || len(paths) == 0 {
		return errors.New("must be the path of a file with one secret per line, or a list of paths")
	}
	for _, path := range paths {
		r.secretFiles = append(r.secretFiles, path)
		b, err := r.file(path)
		if err != nil {
			return err
		}
		found := strings.Fields(string(b))
		if len(found) == 0 {
			return fmt.Errorf("file %s has no secret", path)
		}
		r.config.Secrets = append(r.config.Secrets, found...)
	}
	return nil
}

// secretEnv reads secrets from environment variables, separated by white space.
func (r *serviceReader) secretEnv(v any) error {
	names, err := texts(v)
	if err != nil || len(names) == 0 {
		return errors.New("must be the name of an environment variable, or a list of names")
	}
	for _, name := range names {
		found := strings.Fields(r.getenv(name))
		if len(found) == 0 {
			return fmt.Errorf("environment variable %s is empty or not set", name)
		}
		r.config.Secrets = append(r.config.Secrets, found...)
	}
	return nil
}

// headers reads names with a text, or with {file, prefix} or {env, prefix}.
func (r *serviceReader) headers(v any) error {
	group, ok := v.(map[string]any)
	if !ok {
		return errors.New("must be a group of header names, each with a value")
	}
	r.config.Headers = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(group)) {
		value, err := r.headerValue(group[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		canonical := http.CanonicalHeaderKey(name)
		if _, twice := r.config.Headers[canonical]; twice {
			return fmt.Errorf("%s: duplicate header", name)
		}
		r.config.Headers[canonical] = value
		if err := httpcall.CheckHeader(canonical, value); err != nil {
			return err
		}
	}
	return nil
}

func (r *serviceReader) headerValue(v any) (string, error) {
	shape := errors.New("must be a string, {file: PATH} or {env: NAME}, the last two optionally with prefix: TEXT")
	if s, ok := v.(string); ok {
		r.inline = true
		return s, nil
	}
	group, ok := v.(map[string]any)
	if !ok {
		return "", shape
	}
	field := map[string]string{}
	for key, v := range group {
		s, ok := v.(string)
		if !ok || key != "file" && key != "env" && key != "prefix" {
			return "", shape
		}
		field[key] = s
	}
	var value string
	switch path, name := field["file"], field["env"]; {
	case (path == "") == (name == ""):
		return "", shape
	case path != "":
		r.secretFiles = append(r.secretFiles, path)
		b, err := r.file(path)
		if err != nil {
			return "", err
		}
		if value = strings.TrimSpace(string(b)); value == "" {
			return "", fmt.Errorf("file %s is empty", path)
		}
	default:
		if value = strings.TrimSpace(r.getenv(name)); value == "" {
			return "", fmt.Errorf("environment variable %s is empty or not set", name)
		}
	}
	return field["prefix"] + value, nil
}

func (r *serviceReader) mode(v any) error {
	s, ok := v.(string)
	if mode := functions.Mode(s); !ok || mode != functions.ModeBinary && mode != functions.ModeStructured {
		return errors.New("must be binary or structured")
	}
	r.config.Mode = functions.Mode(s)
	return nil
}

func (r *serviceReader) permanent(v any) error {
	list, ok := v.([]any)
	if !ok {
		return errors.New("must be a list of HTTP statuses such as [410, 422]; [] for none")
	}
	r.config.PermanentStatuses = []int{}
	for _, v := range list {
		code, ok := v.(int)
		if !ok || code < 300 || code > 599 {
			return errors.New("must be a list of HTTP statuses from 300 to 599")
		}
		r.config.PermanentStatuses = append(r.config.PermanentStatuses, code)
	}
	return nil
}

func (r *serviceReader) webhookOrigin(v any) error {
	s, err := webhookOrigin(v)
	r.config.WebhookOrigin = s
	return err
}

// keyWebhookOrigin is the setting of a service, or of a tenant, by which Belfry asks targets for their
// permission.
const keyWebhookOrigin = "webhook-origin"

// webhookOrigin reads the value of keyWebhookOrigin.
func webhookOrigin(v any) (string, error) {
	s, ok := v.(string)
	if !ok || s == "" {
		return "", errors.New("must be a DNS name such as belfry.example.com")
	}
	return s, httpcall.CheckOrigin(s)
}

func (r *serviceReader) baseURL(v any) error {
	s, ok := v.(string)
	if !ok || s == "" {
		return errors.New("must be a URL such as https://api.example.com/hooks")
	}
	u, err := url.Parse(s)
	if err != nil {
		return errors.New("is not a URL") // err would repeat the URL
	}
	r.config.BaseURL = u
	return nil
}

func (r *serviceReader) list(v any, to *[]string) error {
	list, err := texts(v)
	if err != nil {
		return errors.New("must be a string or a list of strings")
	}
	*to = append([]string{}, list...) // not nil: an empty list allows nothing
	return nil
}

func (r *serviceReader) pem(v any, to *[]byte) error {
	path, ok := v.(string)
	if !ok || path == "" {
		return errors.New("must be the path of a PEM file")
	}
	if to == &r.config.PEM.Key {
		r.secretFiles = append(r.secretFiles, path)
	}
	b, err := r.file(path)
	*to = b
	return err
}

// file reads a file of the configuration.
func (r *serviceReader) file(path string) ([]byte, error) {
	r.files.note(path)
	st, err := os.Stat(path)
	if err == nil && st.Size() > maxSecretFileBytes {
		return nil, fmt.Errorf("file %s has %d bytes; the limit is %d", path, st.Size(), maxSecretFileBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		var cause *os.PathError
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	return b, nil
}

// texts reads one text, or a list of them.
func texts(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		return []string{v}, nil
	case []any:
		out := make([]string, 0, len(v))
		for _, v := range v {
			s, ok := v.(string)
			if !ok || s == "" {
				return nil, errors.New("not a text")
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, errors.New("not a text")
}

// hideService returns the group of a service for display. It shows the files and variables of
// the secrets, and hides the secrets.
func hideService(group map[string]any) map[string]any {
	const hidden = "(hidden)"
	out := maps.Clone(group)
	if _, ok := out["secret"]; ok {
		out["secret"] = hidden
	}
	if list, ok := out["secrets"].([]any); ok {
		out["secrets"] = slices.Repeat([]string{hidden}, len(list))
	}
	if headers, ok := out["headers"].(map[string]any); ok {
		headers = maps.Clone(headers)
		for name, v := range headers {
			if _, ok := v.(string); ok {
				headers[name] = hidden
			}
		}
		out["headers"] = headers
	}
	return out
}
