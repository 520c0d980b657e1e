package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/token"
)

// oidcSettings are the settings of the OpenID Connect provider that are not those of the options.
type oidcSettings struct {
	scopes, tenants []string
	secretFile      string
}

func (s *oidcSettings) add(d *pflag.FlagSet, o *app.Options) {
	d.StringVar(&o.OIDC.Issuer, "oidc-issuer", "", "URL of an OpenID Connect provider whose tokens HTTP accepts")
	d.StringVar(&o.OIDC.Audience, "oidc-audience", "", "audience (aud) that its tokens must have")
	d.StringVar(&o.OIDC.ClientID, "oidc-client-id", "", "client as which people log in to the console at the provider")
	d.StringVar(&s.secretFile, "oidc-client-secret-file", "", "file with the secret of that client (or $BELFRY_OIDC_CLIENT_SECRET); a public client has none")
	d.StringSliceVar(&o.OIDC.ClientScopes, "oidc-client-scopes", nil, "scopes of OAuth that the login asks for (default openid)")
	d.StringVar(&o.OIDCRedirect, "oidc-redirect-url", "", "address of the console for people, such as https://belfry.example, to which the provider leads them back (default on loopback: the address of the request)")
	d.StringVar(&o.OIDCCA, "oidc-ca", "", "PEM file of a CA to trust for the provider")
	d.StringVar(&o.OIDC.NameClaim, "oidc-name-claim", "", "claim with the name of the caller (default sub)")
	d.StringVar(&o.OIDC.ScopesClaim, "oidc-scopes-claim", "", "claim with the roles of the caller, such as groups or realm_access.roles (default scope)")
	d.StringSliceVar(&s.scopes, "oidc-scopes", nil, "scopes of roles, such as ops=admin+payload (default belfry:read=read and so on)")
	d.StringVar(&o.OIDC.TenantClaim, "oidc-tenant-claim", "", "claim with the tenant of the caller (default: all callers are of the default tenant)")
	d.StringSliceVar(&s.tenants, "oidc-tenants", nil, "tenants of the values of that claim, such as acme-inc=acme; staff= is the default tenant (default: the values are tenants)")
}

// read sets the maps of the options, and the secret.
func (s *oidcSettings) read(o *app.Options, getenv func(string) string) error {
	secret, err := secretOf(getenv, "oidc-client-secret-file", s.secretFile, "BELFRY_OIDC_CLIENT_SECRET")
	if err != nil {
		return err
	}
	if s.secretFile != "" || o.OIDC.ClientID != "" { // without a client the variable may be for another program
		o.OIDC.ClientSecret = secret
	}
	o.SecretFiles = append(o.SecretFiles, s.secretFile)
	for _, item := range s.scopes {
		role, list, ok := strings.Cut(item, "=")
		if !ok || role == "" || list == "" {
			return usagef("oidc-scopes: %.80q must have the form ROLE=SCOPE+SCOPE", item)
		}
		if o.OIDC.Scopes == nil {
			o.OIDC.Scopes = map[string]token.Scopes{}
		}
		if _, twice := o.OIDC.Scopes[role]; twice {
			return usagef("oidc-scopes: role %.80s occurs twice", role)
		}
		o.OIDC.Scopes[role] = strings.Split(list, "+")
	}
	for _, item := range s.tenants {
		value, tenant, ok := strings.Cut(item, "=")
		if !ok || value == "" {
			return usagef("oidc-tenants: %.80q must have the form VALUE=TENANT", item)
		}
		if o.OIDC.Tenants == nil {
			o.OIDC.Tenants = map[string]string{}
		}
		if _, twice := o.OIDC.Tenants[value]; twice {
			return usagef("oidc-tenants: value %.80s occurs twice", value)
		}
		o.OIDC.Tenants[value] = tenant
	}
	return nil
}
