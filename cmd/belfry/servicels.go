package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) servicesCommand() *cobra.Command {
	var rows int
	cmd := &cobra.Command{
		Use:   "services",
		Short: "List the services, with their events and dead letters",
		Long: `List the services that have callbacks, or messages in a stream, by name. FIRED counts the
events in TIMERS_FIRED, with or without a result; WAITING the events that wait for a call;
IN-FLIGHT the calls without a result yet.`,
		Example: `  belfry services
  belfry services -n 0 -o json`,
		Args: exactly(0),
	}
	cmd.Flags().IntVarP(&rows, "limit", "n", defaultRows, "maximum number of services; 0 for all")
	check := func([]string) error { return checkRows(rows) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		t := table{c.out, []int{24, 9, 8, 8, 9, 8}}
		return printRows(c, s, t, rows, s.Services(ctx), []string{"SERVICE", "CALLBACKS", "FIRED", "WAITING", "IN-FLIGHT", "DEAD"}, serviceRow)
	})
}

// serviceRow describes a service.
func serviceRow(info belfry.ServiceInfo) []string {
	callbacks := "no"
	if info.Callbacks {
		callbacks = "yes"
	}
	return []string{schemas.TenantService(info.Tenant, info.Service), callbacks, fmt.Sprint(info.Fired), fmt.Sprint(info.Waiting), fmt.Sprint(info.InFlight), fmt.Sprint(info.Dead)}
}
