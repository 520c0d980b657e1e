package store

import (
	"context"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Settings of the consumers in TIMERS_TENANT_FIRED.
const (
	tenantAckWait       = 30 * time.Second
	tenantMaxAckPending = 1000
)

// tenantFired stores a copy of each fired event of some tenants in TIMERS_TENANT_FIRED. The subject
// contains the tenant's account, so that each account can import only its own subjects.
//
// The copy is stored before the event. A node that finds the event in TIMERS_FIRED after a
// fail-over publishes nothing, and can rely on the copy. If the node dies between the two, the
// next owner publishes both again, with the same message id. So every event has a copy, and two
// only if the dedup window has passed in between.
//
// A copy has none of Belfry's own headers: nothing in the tenant's account writes results.
type tenantFired struct {
	jet        *jet.Client
	background *jet.Background
	accounts   map[string]string // by tenant
}

// newTenantFired returns nil if no tenant has copies.
func newTenantFired(c *jet.Client, b *jet.Background, accounts map[string]string) *tenantFired {
	if len(accounts) == 0 {
		return nil
	}
	return &tenantFired{jet: c, background: b, accounts: accounts}
}

// account returns the account that gets a copy of a message; "" if none does.
func (t *tenantFired) account(subject string) string {
	svc, fired := strings.CutPrefix(subject, schemas.SubjectFiredPrefix)
	if !fired {
		return ""
	}
	tenant, _ := schemas.SplitService(svc)
	return t.accounts[tenant]
}

// copyFirst stores the copy of m for an account, then calls next in another goroutine. If the
// copy cannot be stored now, it calls failed instead. A copy that can never be stored is left
// out: the event, which is larger, then becomes a dead letter.
func (t *tenantFired) copyFirst(m Msg, account string, next func(), failed func(error)) {
	hdr := make(jet.Header, len(m.Header)+1)
	for name, values := range m.Header {
		if !strings.HasPrefix(name, schemas.HeaderPrefix) {
			hdr[name] = values
		}
	}
	jet.SetMsgID(hdr, m.MsgID)
	_, service := schemas.SplitService(schemas.ServiceOfSubject(m.Subject))
	subject := schemas.TenantFiredSubject(account, service)
	// Not in an atomic batch: the account's subscribers would also get what the server rejects.
	t.jet.PublishAsync("publish "+subject, subject, hdr, m.Data, func(_ jet.Ack, err error) {
		switch {
		case err != nil && !Permanent(err):
			failed(err)
		case !t.background.Spawn(next): // next may wait for a permit, which this callback must not
			failed(schemas.Errorf(schemas.CodeUnavailable, "publish %s: the store is closed", m.Subject))
		}
	})
}

// createConsumers makes the consumer of each account. It has the name of the account, so that the
// account can import the subjects only of its own consumer.
func (t *tenantFired) createConsumers(ctx context.Context) error {
	if t == nil {
		return nil
	}
	for _, account := range t.accounts {
		_, err := t.jet.FindDurable(ctx, jet.Durable{
			Stream: schemas.StreamTenantFired, Name: account, Filter: schemas.TenantFiredSubject(account, "*"),
			AckWait: tenantAckWait, MaxAckPending: tenantMaxAckPending,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
