package main

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/worker/login"
	"github.com/toolfleet/toolfleet/internal/workercmd"
)

type loginCommand struct{ workercmd.Login }

// logins are those that workers inside this program use.
func logins() (login.Store, error) {
	dir, err := cli.StateDir("logins")
	return login.Store{Dir: dir, Advice: func(server string) string {
		return fmt.Sprintf(`run "coordinator login %s --mcp-config FILE"`, server)
	}}, err
}

func (c *loginCommand) run(ctx context.Context, p program) error {
	store, err := logins()
	if err != nil {
		return err
	}
	return c.Run(ctx, p.Program, store)
}
