package quota

// Amount is what timers use of a quota. The zero value is nothing; as a limit, 0 does not bound.
type Amount struct {
	// Timers is the number of pending timers, schedules among them.
	Timers int64
	// Schedules is the number of pending schedules.
	Schedules int64
	// Bytes is the size of the pending timers' events, as schemas.Body.Size has it.
	Bytes int64
}

// Plus returns the sum of two amounts.
func (a Amount) Plus(b Amount) Amount {
	return Amount{a.Timers + b.Timers, a.Schedules + b.Schedules, a.Bytes + b.Bytes}
}

// minus returns the difference of two amounts.
func (a Amount) minus(b Amount) Amount {
	return Amount{a.Timers - b.Timers, a.Schedules - b.Schedules, a.Bytes - b.Bytes}
}

// Quantity is what a limit bounds.
type Quantity int

// The quantities.
const (
	Timers Quantity = iota
	Schedules
	Bytes
	// Services is the number of services of a tenant that have pending timers.
	Services
)

// String is the quantity as error texts have it.
func (q Quantity) String() string {
	return [...]string{"pending timers", "pending schedules", "bytes of pending timers", "services with pending timers"}[q]
}

// Max is the limit of a service or tenant.
type Max struct {
	// Name is that of a service, or that of a tenant with schemas.TenantEnd.
	Name   string
	Amount Amount
	// Services is the number of services that a tenant may have; 0 does not bound them.
	Services int64
}

// Full says which limit permits no more.
type Full struct {
	Name     string
	Quantity Quantity
	// Limit is what the limit permits, Has what stands against it, and Asks what the add would add.
	Limit, Has, Asks int64
}

// exceeds returns the first quantity of which has and asks together are over the limit.
func (m *Max) exceeds(has, asks Amount) (Full, bool) {
	for _, q := range [...]struct {
		quantity         Quantity
		limit, has, asks int64
	}{
		{Timers, m.Amount.Timers, has.Timers, asks.Timers},
		{Schedules, m.Amount.Schedules, has.Schedules, asks.Schedules},
		{Bytes, m.Amount.Bytes, has.Bytes, asks.Bytes},
	} {
		if q.limit > 0 && q.asks > 0 && q.has+q.asks > q.limit {
			return Full{m.Name, q.quantity, q.limit, q.has, q.asks}, true
		}
	}
	return Full{}, false
}
