package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/mcp/login/logintest"
)

// asPerson makes the binary of these tests an agent in front of which somebody sits, or who logs
// in.
const asPerson = "TOOLFLEET_TEST_PERSON"

// person does what the variable says.
func person(arguments []string) error {
	if os.Getenv(asPerson) == "login" {
		return logIn(arguments)
	}
	return call(arguments)
}

// logIn logs in to a server, and opens the pages that it is told to: the arguments are the
// coordinator, its file of servers, and the server.
func logIn(arguments []string) error {
	ctx := context.Background()
	command := exec.CommandContext(ctx, arguments[0], "login", "--mcp-config", arguments[1], arguments[2])
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return err
	}
	if err := logintest.Browse(ctx, output); err != nil {
		return err
	}
	return command.Wait()
}

// call calls a tool by coordinator mcp, and accepts what it asks as it is: the arguments are the
// coordinator, its file of servers, and the tool.
func call(arguments []string) error {
	ctx := context.Background()
	command := exec.CommandContext(ctx, arguments[0], "mcp", "--mcp-config", arguments[1], "--sandbox", "process", "--allow-net", "all")
	command.Stderr = os.Stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
		},
	})
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: command}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		return err
	}
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: arguments[2], Arguments: map[string]any{}})
	if err == nil && result.IsError {
		err = fmt.Errorf("%v", result.StructuredContent) //nolint:err113 // it is only shown
	}
	_ = session.Close() // which ends the coordinator
	return err
}
