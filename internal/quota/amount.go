package quota

// Amount is the use of a quota by timers, or a limit of that use. A field of 0 in a limit does not
// bound.
type Amount struct {
	// Timers is the number of pending timers, schedules among them.
	Timers int64
	// Schedules is the number of pending schedules.
	Schedules int64
	// Bytes is the sum of schemas.Body.Size of the pending timers.
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

// Quantity names a number that a limit bounds.
type Quantity int

// The quantities.
const (
	Timers Quantity = iota
	Schedules
	Bytes
	// Services is the number of services of a tenant that have pending timers.
	Services
)

// String returns the name of the quantity for error texts.
func (q Quantity) String() string {
	return [...]string{"pending timers", "pending schedules", "bytes of pending timers", "services with pending timers"}[q]
}

// Max is the limit of a service or tenant.
type Max struct {
	// Name is the name of a service, or the name of a tenant followed by schemas.TenantEnd.
	Name   string
	Amount Amount
	// Services is the number of services that a tenant may have; 0 does not bound them.
	Services int64
}

// Full describes the limit that refuses an add.
type Full struct {
	Name     string
	Quantity Quantity
	// Limit is the value of the limit, Has the present use, and Asks the use of the add.
	Limit, Has, Asks int64
}

// exceeds returns the first quantity for which the sum of has and asks exceeds the limit.
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
