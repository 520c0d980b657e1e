package app

import (
	"strings"
	"testing"
)

// TestTenantSettings: settings of tenants that could mix up accounts are refused at the start.
func TestTenantSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url     string
		tenants map[string]string
		says    string
	}{
		{"nats://127.0.0.1:4222", map[string]string{"acme": "ACME", "globex": "GLOBEX"}, ""},
		{"", map[string]string{"acme": "ACME"}, "nats-url"},
		{"nats://127.0.0.1:4222", map[string]string{"acme": "ONE", "globex": "ONE"}, "tenants acme and globex have the same account ONE"},
		{"nats://127.0.0.1:4222", map[string]string{"Acme": "ACME"}, "lower-case"},
		{"nats://127.0.0.1:4222", map[string]string{"acme": ""}, "one token"},
		{"nats://127.0.0.1:4222", map[string]string{"acme": "A.B"}, "one token"},
		{"nats://127.0.0.1:4222", map[string]string{"acme": "*"}, "one token"},
	} {
		o := DefaultOptions()
		o.Data, o.NATSURL, o.Tenants = t.TempDir(), c.url, c.tenants
		err := o.Validate()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q %v: %v; want an error that says %q", c.url, c.tenants, err, c.says)
		}
	}
}
