package token

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file of tokens.
const (
	// MaxFileBytes bounds the size of the file.
	MaxFileBytes = 1 << 20
	// MaxTokens bounds the tokens of the file, because each request is compared with all of them.
	MaxTokens = 1000
)

// Parse reads a file of tokens: a YAML or JSON list. An empty file is a Set without tokens, which
// refuses every request. An error names the line, and never contains a hash or a token.
func Parse(data []byte) (*Set, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("the file has %d bytes; the limit is %d", len(data), MaxFileBytes)
	}
	root, err := document(data)
	if err != nil {
		return nil, err
	}
	if root == nil {
		return &Set{}, nil
	}
	if root.Kind != yaml.SequenceNode {
		return nil, atLine(root, errors.New("the file must be a list of tokens, each as belfry token new prints it"))
	}
	if len(root.Content) > MaxTokens {
		return nil, fmt.Errorf("the file has %d tokens; the limit is %d", len(root.Content), MaxTokens)
	}
	s := &Set{}
	names, hashes := map[string]int{}, map[Hash]int{} // lines
	for _, n := range root.Content {
		t, err := parseToken(n)
		if err != nil {
			return nil, err
		}
		if first, twice := names[t.Name]; twice {
			return nil, atLine(n, fmt.Errorf("token %s: line %d has the same name", t.Name, first))
		}
		if first, twice := hashes[t.Hash]; twice {
			return nil, atLine(n, fmt.Errorf("token %s: line %d has the same hash", t.Name, first))
		}
		names[t.Name], hashes[t.Hash] = t.Line, t.Line
		s.tokens = append(s.tokens, t)
	}
	return s, nil
}

// document returns the only document of a file; nil if the file is empty.
func document(data []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the file is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file must have one YAML document: a second one would be ignored")
	}
	return doc.Content[0], nil
}

func parseToken(n *yaml.Node) (Token, error) {
	t := Token{Line: n.Line}
	if n.Kind != yaml.MappingNode {
		return t, atLine(n, errors.New("must be a group with name, hash and scopes, as belfry token new prints it"))
	}
	given := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if given[key.Value] {
			return t, atLine(key, fmt.Errorf("duplicate key %.16q", key.Value))
		}
		given[key.Value] = true
		if err := t.set(key.Value, value); err != nil {
			return t, atLine(value, fmt.Errorf("%.16s: %w", key.Value, err))
		}
	}
	for _, key := range []string{"name", "hash", "scopes"} {
		if !given[key] {
			return t, atLine(n, fmt.Errorf("a token needs %s", key))
		}
	}
	if err := t.Check(); err != nil {
		return t, atLine(n, err)
	}
	return t, nil
}

// set reads the value of a key.
func (t *Token) set(key string, n *yaml.Node) (err error) {
	switch key {
	case "name":
		t.Name, err = text(n)
	case "tenant":
		t.Tenant, err = text(n)
	case "hash":
		var hash string
		if hash, err = text(n); err == nil {
			t.Hash, err = parseHash(hash)
		}
	case "scopes":
		t.Scopes, err = texts(n)
	case "expires":
		var at string
		if at, err = text(n); err == nil {
			if t.Expires, err = time.Parse(time.RFC3339, at); err != nil {
				err = errors.New("must be a time with an offset, such as 2027-01-31T00:00:00Z; leave it out for a token that does not expire")
			}
		}
	default:
		err = errors.New("unknown key; the keys of a token are name, hash, scopes, tenant and expires")
	}
	return err
}

// text returns a single value as it is written, also if it looks like a number or a time.
func text(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		return "", errors.New("must be a text")
	}
	return n.Value, nil
}

func texts(n *yaml.Node) (Scopes, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, errors.New("must be a list such as [read, write]")
	}
	var out Scopes
	for _, item := range n.Content {
		s, err := text(item)
		if err != nil {
			return nil, errors.New("must be a list such as [read, write]")
		}
		out = append(out, s)
	}
	return out, nil
}

func atLine(n *yaml.Node, err error) error { return fmt.Errorf("line %d: %w", n.Line, err) }
