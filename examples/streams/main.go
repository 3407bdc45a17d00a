// Command streams builds a library and a program in three streams on two sandboxes: the
// program waits for the library, and a service runs until it is cancelled. Its calls have ids.
// So if it is killed at any moment and started again with the same job, it follows the calls that
// it had sent and sends the others: none runs twice, and the results are the same.
//
//	go run ./examples/streams nats://127.0.0.1:4222 job1
//	go run ./examples/streams URL job1 nats.token calls.key    # the files that coordinator serve made
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func main() {
	arguments := os.Args[1:]
	if len(arguments) != 2 && len(arguments) != 4 {
		log.Fatal("usage: streams URL JOB [CREDS SIGNKEY]")
	}
	options := fleet.Options{URL: arguments[0]}
	if len(arguments) > 2 {
		options.Creds, options.SignKey = arguments[2], arguments[3]
	}
	if err := run(context.Background(), os.Stdout, options, arguments[1]); err != nil { //nolint:forbidigo // the root
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, options fleet.Options, job string) error {
	client, err := fleet.Connect(ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	call := func(id, command string) fleet.Call {
		return fleet.Call{ID: protocol.CallID(job + "-" + id), Payload: protocol.CommandRun{Command: command}}
	}
	library := client.Stream(job+"-library", "build")
	program, service := client.Stream(job+"-program", "build"), client.Stream(job+"-program", "service")

	serve := service.Go(ctx, call("serve", "while sleep 1; do :; done"))
	fetch := program.Go(ctx, call("fetch", "echo fetched >> log"))
	compile := library.Go(ctx, call("compile", "for i in 1 2 3 4 5; do echo compiled $i; sleep 0.3; done | tee -a log"))
	pack := library.Go(ctx, call("pack", "echo packed >> log; cat log"))
	program.Wait(library.Record())
	link := program.Go(ctx, call("link", "echo linked >> log; cat log"))

	for output := range compile.Output(ctx) {
		_, _ = fmt.Fprintf(out, "live %s: %s", output.Stream, output.Data)
	}
	if _, err := link.Wait(ctx); err != nil {
		return err
	}
	if err := serve.Cancel(ctx); err != nil {
		return err
	}
	for _, future := range []*fleet.Future{fetch, compile, pack, link, serve} {
		result, err := future.Wait(ctx)
		if err != nil {
			return err
		}
		if result.Status == protocol.StatusRejected {
			return fmt.Errorf("%s: %s", result.CallID, result.Text)
		}
		ran, _ := result.Value.(protocol.CommandRunResult)
		_, _ = fmt.Fprintf(out, "%s %s %q\n", result.CallID, result.Status, ran.Stdout)
	}
	return nil
}
