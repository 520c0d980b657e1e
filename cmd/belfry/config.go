package main

import (
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and check a node's settings",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(c.configPrintCommand(), c.configCheckCommand())
	return cmd
}

func (c *cli) configPrintCommand() *cobra.Command {
	s := &settings{}
	cmd := c.printing(&cobra.Command{
		Use:   "print",
		Short: "Show the settings that serve would use, without secrets",
		Long:  "Show the settings that serve would use with the same flags, environment and config file. Secrets are hidden.",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if _, err := s.load(c); err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(s.effective())
			}
			b, err := yaml.Marshal(s.effective())
			if err != nil {
				return err
			}
			_, err = c.out.Write(b)
			return err
		},
	})
	s.add(cmd)
	return cmd
}

func (c *cli) configCheckCommand() *cobra.Command {
	s := &settings{}
	cmd := c.printing(&cobra.Command{
		Use:   "check",
		Short: "Check the settings that serve would use",
		Long: `Check the settings that serve would use with the same flags, environment and config
file. The command also reads the certificates, keys and credentials that they name. It
connects to no server.`,
		Args: exactly(0),
		RunE: func(*cobra.Command, []string) error {
			o, err := s.load(c)
			if err != nil {
				return err
			}
			if err := o.CheckFiles(); err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(map[string]any{"ok": true, "config": s.config})
			}
			return c.printText("settings", "ok", "config", s.config)
		},
	})
	s.add(cmd)
	return cmd
}
