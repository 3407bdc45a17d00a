// Command streams builds a library and a program in three streams on two sandboxes: the
// program waits for the library, and a service runs until it is cancelled. Its calls have ids.
// So if it is killed at any moment and started again with the same job, it follows the calls that
// it had sent and sends the others: none runs twice, and the results are the same.
//
//	go run ./examples/streams nats://127.0.0.1:4222 job1
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
	if err := run(context.Background(), os.Stdout, os.Args[1], os.Args[2]); err != nil { //nolint:forbidigo // the root
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, url, job string) error {
	client, err := fleet.Connect(ctx, fleet.Options{URL: url})
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
		ran, _ := result.Value.(protocol.CommandRunResult)
		_, _ = fmt.Fprintf(out, "%s %s %q\n", result.CallID, result.Status, ran.Stdout)
	}
	return nil
}
