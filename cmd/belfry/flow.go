package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) flowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flow",
		Short: "Limit, pause and watch the callbacks of a target",
		Long: `Limit how many callbacks a target gets a second, or at once, over all nodes, and stop
and start them. KEY is a flow key: the host of an HTTP callback such as api.example.com,
service:SERVICE for callbacks over NATS, or what a timer names with --flow. With * in it,
such as 'customer:*', it is a pattern: the limit applies to each matching key by itself. A
pause of service:SERVICE or group:GROUP holds all callbacks of the service or of the group,
whatever their flow keys.`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(c.flowListCommand(), c.flowSetCommand(), c.flowShowCommand(), c.flowPauseCommand(), c.flowResumeCommand(), c.flowResetCommand(), c.flowDeleteCommand())
	return cmd
}

// flowChange has the arguments that all commands which change a limit share.
type flowChange struct {
	key      string
	by       byFlag
	revision uint64
}

func (f *flowChange) add(fs *pflag.FlagSet) {
	fs.Uint64Var(&f.revision, "revision", 0, "fail unless the limit has this revision")
	f.by.add(fs)
}

// check sets the key from the first argument.
func (f *flowChange) check(args []string) error {
	f.key = args[0]
	return cmp.Or(checkFlow(f.key), f.by.check())
}

func (f *flowChange) options() []belfry.FlowOption {
	return []belfry.FlowOption{belfry.FlowBy(f.by.by), belfry.FlowRevision(f.revision)}
}

// checkFlow validates a flow key or pattern before any request.
func checkFlow(key string) error {
	if err := schemas.CheckFlowPattern(key); err != nil {
		return usagef("%v", err)
	}
	return nil
}

func (c *cli) flowSetCommand() *cobra.Command {
	f, limit, dryRun := &flowChange{}, belfry.FlowLimit{}, false
	cmd := &cobra.Command{
		Use:   "set KEY",
		Short: "Store the limit of a flow key or pattern",
		Long: `Replace the whole limit of a flow key or pattern, or make a new one: a flag that you leave
out does not limit. A pause stays until "belfry flow resume". The command takes about a
second: after it has succeeded, every call that begins follows the limit.`,
		Example: `  belfry flow set api.example.com --rate 100/m --burst 10 --parallel 5
  belfry flow set 'customer:*' --parallel 1
  belfry flow set adds:orders --rate 1000/s --pending 100000
  belfry flow set adds:acme= --services 20 --schedules 500 --bytes 1000000000
  belfry flow set api.example.com --rate 200/1m --dry-run`,
		Args: exactly(1),
	}
	fs := cmd.Flags()
	fs.StringVar(&limit.Rate, "rate", "", "calls in a duration: 20/s, 100/m, 5000/d, 100/10m")
	fs.IntVar(&limit.Burst, "burst", 0, "calls that may begin at once, only with --rate (default: the calls of a tenth of a second, at least 2; 1 if a second or more is between two calls)")
	fs.IntVar(&limit.Parallel, "parallel", 0, "calls that run at once")
	fs.IntVar(&limit.Pending, "pending", 0, "timers that may wait for their due time, only for a KEY that begins with adds:")
	fs.IntVar(&limit.Schedules, "schedules", 0, "schedules that may be pending, only for a KEY that begins with adds:")
	fs.IntVar(&limit.Services, "services", 0, "services that may have pending timers, only for the KEY of a tenant, such as adds:acme=")
	fs.Int64Var(&limit.Bytes, "bytes", 0, "bytes that the events of pending timers may have together, only for a KEY that begins with adds:")
	circuit := fs.Int("circuit", flow.DefaultCircuit, "connection errors in a row after which the calls stop until the target answers a probe; 0 for never")
	fs.BoolVar(&dryRun, "dry-run", false, "only say what would change")
	f.add(fs)
	check := func(args []string) error {
		if err := f.check(args); err != nil {
			return err
		}
		if fs.Changed("circuit") {
			limit.Circuit = circuit
		}
		return checkLimit(fs, f.key, limit)
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		opts := f.options()
		if dryRun {
			opts = append(opts, belfry.FlowDryRun())
		}
		r, err := s.SetFlow(ctx, f.key, limit, opts...)
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(r)
		}
		pairs := append(c.limitPairs(r.Limit), "before", limitText(r.Before))
		pairs = append(pairs, "waiting", waitingText(r.Waiting, r.Partial), "drained", c.drainedText(r.Drained), "not for", strings.Join(r.Except, " "))
		return c.printText(pairs...)
	})
}

// quotaFlags returns a flag of a quota that is set, and the error of a flag whose value is below 1; "" for none.
func quotaFlags(fs *pflag.FlagSet, limit belfry.FlowLimit) (quota, below string) {
	for _, f := range []struct {
		name string
		n    int64
	}{{"pending", int64(limit.Pending)}, {"schedules", int64(limit.Schedules)}, {"services", int64(limit.Services)}, {"bytes", limit.Bytes}} {
		if !fs.Changed(f.name) {
			continue
		}
		if quota = f.name; f.n < 1 {
			below = fmt.Sprintf("--%s %d: write 1 or more; without --%s the number is not limited", f.name, f.n, f.name)
		}
	}
	return quota, below
}

// checkLimit validates the flags of a limit before any request.
func checkLimit(fs *pflag.FlagSet, key string, limit belfry.FlowLimit) error {
	quota, below := quotaFlags(fs, limit)
	switch {
	case !fs.Changed("rate") && !fs.Changed("parallel") && quota == "" && limit.Circuit == nil:
		return usagef("give --rate, --parallel or --circuit, or --pending, --schedules, --services or --bytes for adds; \"belfry flow rm\" removes a limit, \"belfry flow pause\" stops all calls")
	case fs.Changed("parallel") && limit.Parallel < 1:
		return usagef("--parallel %d: write 1 or more; without --parallel the number is not limited", limit.Parallel)
	case below != "":
		return usagef("%s", below)
	case quota != "" && !schemas.LimitsAdds(key):
		return usagef("--%s limits the adds of a service or tenant, and %s is a key of callbacks: give a KEY such as %sorders", quota, key, schemas.AddsFlowPrefix)
	case fs.Changed("services") && !strings.HasSuffix(key, schemas.TenantEnd):
		return usagef("--services limits the services of a tenant: give a KEY such as %sacme%s", schemas.AddsFlowPrefix, schemas.TenantEnd)
	case limit.Circuit != nil && (*limit.Circuit < 0 || *limit.Circuit > flow.MaxCircuit):
		return usagef("--circuit %d: write 1 to %d, or 0 for no circuit", *limit.Circuit, flow.MaxCircuit)
	case fs.Changed("burst") && limit.Burst < 1:
		return usagef("--burst %d: write 1 or more; without --burst the rate has its default", limit.Burst)
	case fs.Changed("burst") && limit.Rate == "":
		return usagef("--burst is the number of calls of a rate that may start at once: give --rate, too")
	}
	l := flow.Limit{Parallel: limit.Parallel, Pending: limit.Pending, Schedules: limit.Schedules, Services: limit.Services, Bytes: limit.Bytes}
	if limit.Circuit != nil { // in range
		l.Circuit = flow.DefaultCircuit
	}
	if fs.Changed("rate") {
		var err error
		if l.Rate, err = flow.ParseRate(limit.Rate); err != nil {
			return usagef("--rate: %v", err)
		}
		l.Burst = cmp.Or(limit.Burst, l.Rate.DefaultBurst())
	}
	if err := l.Check(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

func (c *cli) flowShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show the limit of a flow key or pattern, and what waits for it",
		Long: `Show the limit that applies to a flow key and the pattern that gave it; the calls in
progress, the events that wait, the next free slot, and when the last of them is called;
and the rate that the target allows, if it was asked (webhook-origin of a service). Of a pattern, show its limit and the keys in use, the busiest first.`,
		Example: `  belfry flow show api.example.com
  belfry flow show 'customer:*' -o json`,
		Args: exactly(1),
	}
	var key string
	check := func(args []string) error { key = args[0]; return checkFlow(key) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		st, err := s.GetFlow(ctx, key)
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(st)
		}
		return c.printFlow(st)
	})
}

// printFlow prints the limit of a key or pattern and what of it is used.
func (c *cli) printFlow(st belfry.FlowStatus) error {
	if st.Limit == nil {
		pairs := []string{"flow", st.Key, "limit", "none: every call begins when it is due"}
		if st.Hold != nil {
			pairs = append([]string{"flow", st.Key, "limit", "none"}, c.holdPairs(st.Hold)...)
			for _, k := range st.Keys {
				pairs = append(pairs, "waiting", waitingText(k.Waiting, k.Partial))
			}
		}
		return c.printText(pairs...)
	}
	pairs := append([]string{"flow", st.Key}, c.holdPairs(st.Hold)...)
	if st.Limit.Key != st.Key {
		pairs = append(pairs, "limit of", st.Limit.Key)
	}
	pairs = append(pairs, c.limitPairs(st.Limit)[2:]...)
	if strings.Contains(st.Key, "*") {
		pairs = append(pairs, "not for", strings.Join(st.Except, " "))
		if err := c.printText(pairs...); err != nil || len(st.Keys) == 0 {
			return err
		}
		return c.printFlowKeys(st)
	}
	for _, k := range st.Keys {
		inFlight := ""
		if st.Limit.Parallel > 0 {
			inFlight = strconv.Itoa(k.InFlight)
		}
		pairs = append(pairs, "pending now", pendingText(&st, &k), "schedules now", usedText(&st, k.Schedules, int64(st.Limit.Schedules)), "services now", usedText(&st, k.Services, int64(st.Limit.Services)),
			"bytes now", usedText(&st, k.Bytes, st.Limit.Bytes), "in flight", inFlight, "waiting", waitingText(k.Waiting, k.Partial), "next slot", c.zone.show(k.Next), "drained", c.drainedText(k.Drained))
	}
	return c.printText(pairs...)
}

// printFlowKeys prints the keys of a pattern that are in use.
func (c *cli) printFlowKeys(st belfry.FlowStatus) error {
	if _, err := fmt.Fprintln(c.out); err != nil {
		return err
	}
	width := len("KEY")
	for _, k := range st.Keys {
		width = max(width, len(k.Key))
	}
	if l := st.Limit; l.Pending > 0 || l.Schedules > 0 || l.Services > 0 || l.Bytes > 0 {
		return c.printPendingKeys(st, width)
	}
	t := table{c.out, []int{width, 9, 12, c.zone.width()}}
	if err := t.row("KEY", "IN FLIGHT", "WAITING", "NEXT SLOT", "DRAINED"); err != nil {
		return err
	}
	for _, k := range st.Keys {
		if err := t.row(k.Key, strconv.Itoa(k.InFlight), waitingText(k.Waiting, k.Partial), c.zone.show(k.Next), c.zone.show(k.Drained)); err != nil {
			return err
		}
	}
	return c.printMore(st)
}

// printPendingKeys prints the services or tenants under a limit of what pending timers use.
func (c *cli) printPendingKeys(st belfry.FlowStatus, width int) error {
	l := st.Limit
	t := table{c.out, []int{width, 20, 20, 20, 24}}
	if err := t.row("KEY", "PENDING", "SCHEDULES", "SERVICES", "BYTES", "NEXT SLOT"); err != nil {
		return err
	}
	for _, k := range st.Keys {
		if err := t.row(k.Key, pendingText(&st, &k), usedText(&st, k.Schedules, int64(l.Schedules)), usedText(&st, k.Services, int64(l.Services)), usedText(&st, k.Bytes, l.Bytes), c.zone.show(k.Next)); err != nil {
			return err
		}
	}
	return c.printMore(st)
}

func (c *cli) printMore(st belfry.FlowStatus) error {
	if st.More {
		_, err := fmt.Fprintf(c.err, "only the busiest %d keys are shown\n", len(st.Keys))
		return err
	}
	return nil
}

// pendingText says how many pending timers a key has; "" without a limit of these.
func pendingText(st *belfry.FlowStatus, k *schemas.FlowKeyInfo) string {
	return usedText(st, k.Pending, int64(st.Limit.Pending))
}

// usedText says how much of a limit a key uses; "" without a limit.
func usedText(st *belfry.FlowStatus, used, limit int64) string {
	switch {
	case limit == 0:
		return ""
	case st.Uncounted > 0:
		return fmt.Sprintf("%d of %d, %d shards are not counted yet", used, limit, st.Uncounted)
	}
	return fmt.Sprintf("%d of %d", used, limit)
}

func (c *cli) flowListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the limits, and the rates that targets allow", Args: exactly(0)}
	return c.talking(cmd, func([]string) error { return nil }, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		all, err := s.Flows(ctx)
		if err != nil {
			return err
		}
		holds, err := s.FlowHolds(ctx)
		if err != nil {
			return err
		}
		switch {
		case len(all) == 0 && len(holds) == 0:
			return c.empty()
		case c.json():
			return c.printFlowsJSON(all, holds)
		}
		if err := c.printLimits(all); err != nil {
			return err
		}
		return c.printHolds(holds)
	})
}

// printLimits prints limits as a table; nothing if there are none.
func (c *cli) printLimits(all []belfry.FlowLimitInfo) error {
	width := len("KEY")
	for _, l := range all {
		width = max(width, len(l.Key))
	}
	t := table{c.out, []int{width, 12, 6, 8, 10}}
	// Most stores have no quotas of these, and a line has little room.
	quotas := slices.ContainsFunc(all, func(l belfry.FlowLimitInfo) bool { return l.Schedules > 0 || l.Services > 0 || l.Bytes > 0 })
	if quotas {
		t.widths = append(t.widths, 10, 8, 14)
	}
	t.widths = append(t.widths, 8)
	row := func(quota []string, rest ...string) error {
		if quotas {
			rest = slices.Insert(rest, 5, quota...)
		}
		return t.row(rest...)
	}
	for i, l := range all {
		if i == 0 {
			if err := row([]string{"SCHEDULES", "SERVICES", "BYTES"}, "KEY", "RATE", "BURST", "PARALLEL", "PENDING", "REVISION", "STATE"); err != nil {
				return err
			}
		}
		if err := row([]string{number(l.Schedules), number(l.Services), number(int(l.Bytes))}, l.Key, l.Rate, number(l.Burst), number(l.Parallel), number(l.Pending), strconv.FormatUint(l.Revision, 10), flowState(&l)); err != nil {
			return err
		}
	}
	return nil
}

// flowLine is a line of flow ls: a limit, and what stops the calls of its key; nil for nothing.
type flowLine struct {
	limit belfry.FlowLimitInfo
	hold  *belfry.FlowHold
}

// MarshalJSON writes the fields of the limit, and the field hold. An embedded limit would write
// itself alone, by its own MarshalJSON.
func (l flowLine) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(l.limit)
	if err != nil || l.hold == nil {
		return b, err
	}
	hold, err := json.Marshal(l.hold)
	if err != nil {
		return nil, err
	}
	b = append(b[:len(b)-1], `,"hold":`...)
	return append(append(b, hold...), '}'), nil
}

// printFlowsJSON prints a line for each limit, with what an answer of the target stops, and one for
// each key without a limit of its own that is stopped.
func (c *cli) printFlowsJSON(all []belfry.FlowLimitInfo, holds []belfry.FlowHold) error {
	byKey := make(map[string]*belfry.FlowHold, len(holds))
	for i := range holds {
		byKey[holds[i].Key] = &holds[i]
	}
	for _, l := range all {
		if err := c.printJSON(flowLine{l, byKey[l.Key]}); err != nil {
			return err
		}
		delete(byKey, l.Key)
	}
	for i := range holds {
		if h := byKey[holds[i].Key]; h != nil {
			if err := c.printJSON(flowLine{belfry.FlowLimitInfo{Key: h.Key}, h}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cli) flowPauseCommand() *cobra.Command {
	f, note := &flowChange{}, ""
	cmd := &cobra.Command{
		Use:   "pause KEY",
		Short: "Stop the callbacks of a flow key or pattern",
		Long: `Stop the callbacks of a flow key, or of each key that matches a pattern, until "belfry flow
resume". service:SERVICE stops all callbacks of the service, group:GROUP those of the group,
whatever their flow keys. The key needs no limit. The command takes about a second: after
it has succeeded, no call begins; calls in progress end. Events that come due fire on
timers.fired; their callbacks wait and use no attempt.`,
		Example: `  belfry flow pause api.example.com --note "the API is being repaired"
  belfry flow pause service:mail --note "the mail provider is down"
  belfry flow pause group:import-7`,
		Args: exactly(1),
	}
	cmd.Flags().StringVar(&note, "note", "", fmt.Sprintf("why, at most %d bytes; flow show and flow ls show it", schemas.MaxPauseNote))
	f.add(cmd.Flags())
	check := func(args []string) error {
		if err := schemas.CheckNote(note); err != nil {
			return usagef("--note: %v", err)
		}
		return f.check(args)
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		return c.changeFlow(ctx, s, func(ctx context.Context) (belfry.FlowChange, error) {
			return s.PauseFlow(ctx, f.key, note, f.options()...)
		})
	})
}

func (c *cli) flowResumeCommand() *cobra.Command {
	f := &flowChange{}
	cmd := &cobra.Command{
		Use:   "resume KEY",
		Short: "Let the callbacks of a paused flow key or pattern begin again",
		Long: `End the pause of a flow key or pattern. The events that wait are called at the rate of the
limit. A limit that only paused is removed.`,
		Args: exactly(1),
	}
	f.add(cmd.Flags())
	return c.talking(cmd, f.check, func(ctx context.Context, s session) error {
		return c.changeFlow(ctx, s, func(ctx context.Context) (belfry.FlowChange, error) {
			return s.ResumeFlow(ctx, f.key, f.options()...)
		})
	})
}

func (c *cli) flowDeleteCommand() *cobra.Command {
	f := &flowChange{}
	cmd := &cobra.Command{
		Use:   "rm KEY",
		Short: "Delete the limit of a flow key or pattern",
		Long: `Delete a limit. The keys then have the limit of another pattern that matches, or none. It is
refused while the limit is paused.`,
		Args: exactly(1),
	}
	f.add(cmd.Flags())
	return c.talking(cmd, f.check, func(ctx context.Context, s session) error {
		return c.changeFlow(ctx, s, func(ctx context.Context) (belfry.FlowChange, error) {
			return s.DeleteFlow(ctx, f.key, f.options()...)
		})
	})
}

// changeFlow changes a limit and prints it.
func (c *cli) changeFlow(ctx context.Context, s session, change func(context.Context) (belfry.FlowChange, error)) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := change(ctx)
	switch {
	case err != nil:
		return err
	case c.json():
		return c.printJSON(r)
	case r.Limit == nil && r.Before != nil:
		return c.printText("flow", r.Before.Key, "limit", "none of its own any more")
	}
	return c.printText(append(c.limitPairs(r.Limit), "not for", strings.Join(r.Except, " "))...)
}

// limitPairs returns the lines about a stored limit.
func (c *cli) limitPairs(l *belfry.FlowLimitInfo) []string {
	return []string{"flow", l.Key, "rate", l.Rate, "burst", number(l.Burst), "parallel", number(l.Parallel), "pending", number(l.Pending), "schedules", number(l.Schedules), "services", number(l.Services), "bytes", number(int(l.Bytes)), "circuit", circuitText(l.Circuit), "target", c.targetText(l.Target), "state", flowState(l),
		"since", c.zone.show(l.PausedAt), "paused by", l.PausedBy, "revision", number(int(l.Revision)), "changed", c.zone.show(l.Changed), "by", l.By}
}

// targetText describes the rate that a target allows; "" for none.
func (c *cli) targetText(t *schemas.FlowTarget) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%d/1m allowed by %s until %s, asked at %s", t.PerMinute, t.URL, c.zone.show(t.Until), c.zone.show(t.Asked))
}

// circuitText says when the circuit of a limit opens; "" for the default.
func circuitText(circuit *int) string {
	switch {
	case circuit == nil:
		return ""
	case *circuit == 0:
		return "never opens"
	}
	return fmt.Sprintf("opens after %d connection errors in a row", *circuit)
}

// flowState says whether a limit is paused and why, or that it cannot be read.
func flowState(l *belfry.FlowLimitInfo) string {
	switch {
	case l.Error != "":
		return "unreadable, its calls wait: " + l.Error
	case l.Paused && l.PauseNote != "":
		return "paused: " + l.PauseNote
	case l.Paused:
		return "paused"
	case l.Target != nil && l.Revision == 0:
		return "of its target alone"
	}
	return "active"
}

// limitText describes a limit in one line; "" for none.
func limitText(l *belfry.FlowLimitInfo) string {
	if l == nil {
		return ""
	}
	var parts []string
	if l.Rate != "" {
		parts = append(parts, fmt.Sprintf("%s burst %d", l.Rate, l.Burst))
	}
	if l.Parallel > 0 {
		parts = append(parts, fmt.Sprintf("parallel %d", l.Parallel))
	}
	if l.Pending > 0 {
		parts = append(parts, fmt.Sprintf("pending %d", l.Pending))
	}
	if l.Schedules > 0 {
		parts = append(parts, fmt.Sprintf("schedules %d", l.Schedules))
	}
	if l.Services > 0 {
		parts = append(parts, fmt.Sprintf("services %d", l.Services))
	}
	if l.Bytes > 0 {
		parts = append(parts, fmt.Sprintf("bytes %d", l.Bytes))
	}
	if l.Circuit != nil {
		parts = append(parts, fmt.Sprintf("circuit %d", *l.Circuit))
	}
	if l.Paused {
		parts = append(parts, "paused")
	}
	if l.Error != "" {
		parts = append(parts, "unreadable")
	}
	return strings.Join(parts, ", ")
}

// waitingText shows a number of waiting events.
func waitingText(n int, partial bool) string {
	if partial {
		return strconv.Itoa(n) + " or more"
	}
	return strconv.Itoa(n)
}

// drainedText says when the last waiting event is called; "" for the zero time.
func (c *cli) drainedText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return "at " + c.zone.show(at) + ", at this rate"
}
