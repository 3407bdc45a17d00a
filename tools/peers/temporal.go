package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// temporalPeer is Temporal's development server, and a worker of its Go SDK. The server has a
// database file with a write-ahead log: with SQLite's default journal it is three times as slow. A
// task is a workflow with one activity. Tasks with a key are updates of a workflow for that key,
// which runs them one after the other by a mutex. A workflow takes few updates at once, so the
// backlog waits on a task queue of its own, for a worker that runs one activity at a time. It is
// sent call by call, so let it be small (-backlog 1000).
type temporalPeer struct {
	*work

	server  *exec.Cmd
	client  client.Client
	workers []worker.Worker
}

const (
	queueOfTasks   = "tasks"
	queueOfBacklog = "backlog"
	// updatesOfWorkflow is after how many updates a workflow starts itself again; the server
	// refuses more than 2,000.
	updatesOfWorkflow = 1000
)

func (p *temporalPeer) Start(ctx context.Context, dir string, slots int) error {
	program, err := temporalProgram(ctx)
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	p.server = exec.Command(program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", strconv.Itoa(port),
		"--db-filename", filepath.Join(dir, "temporal.db"), "--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL", "--log-level", "error")
	if err := startProgram(p.server, filepath.Join(dir, "temporal.log")); err != nil {
		return err
	}
	options := client.Options{HostPort: "127.0.0.1:" + strconv.Itoa(port), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))}
	if err := await(ctx, func() error {
		p.client, err = client.DialContext(ctx, options)
		return err
	}); err != nil {
		return err
	}
	for queue, atOnce := range map[string]int{queueOfTasks: slots, queueOfBacklog: 1} {
		w := worker.New(p.client, queue, worker.Options{MaxConcurrentActivityExecutionSize: atOnce})
		w.RegisterWorkflow(taskWorkflow)
		w.RegisterWorkflow(keyWorkflow)
		w.RegisterActivity(p.Run)
		if err := w.Start(); err != nil {
			return err
		}
		p.workers = append(p.workers, w)
	}
	return nil
}

// Run is the activity of all tasks.
func (p *temporalPeer) Run(ctx context.Context, t task) (string, error) { return p.run(ctx, t) }

func runTask(ctx workflow.Context, t task) (text string, err error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	var p *temporalPeer
	err = workflow.ExecuteActivity(ctx, p.Run, t).Get(ctx, &text)
	return text, err
}

func taskWorkflow(ctx workflow.Context, t task) (string, error) { return runTask(ctx, t) }

// keyWorkflow takes the tasks of one key.
func keyWorkflow(ctx workflow.Context) error {
	mutex, taken := workflow.NewMutex(ctx), 0
	err := workflow.SetUpdateHandler(ctx, "run", func(ctx workflow.Context, t task) (string, error) {
		taken++
		if err := mutex.Lock(ctx); err != nil {
			return "", err
		}
		defer mutex.Unlock()
		return runTask(ctx, t)
	})
	if err != nil {
		return err
	}
	if err := workflow.Await(ctx, func() bool { return taken >= updatesOfWorkflow && workflow.AllHandlersFinished(ctx) }); err != nil {
		return err
	}
	return workflow.NewContinueAsNewError(ctx, keyWorkflow)
}

func (p *temporalPeer) Do(ctx context.Context, t task) error {
	var text string
	if t.Key == "" {
		run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queueOfTasks}, taskWorkflow, t)
		if err != nil {
			return err
		}
		return run.Get(ctx, &text)
	}
	start := p.client.NewWithStartWorkflowOperation(client.StartWorkflowOptions{
		ID: t.Key, TaskQueue: queueOfTasks, WorkflowIDConflictPolicy: enums.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
	}, keyWorkflow)
	update, err := p.client.UpdateWithStartWorkflow(ctx, client.UpdateWithStartWorkflowOptions{
		StartWorkflowOperation: start,
		UpdateOptions: client.UpdateWorkflowOptions{
			UpdateID: uuid.NewString(), UpdateName: "run", Args: []any{t}, WaitForStage: client.WorkflowUpdateStageCompleted,
		},
	})
	if err != nil {
		return err
	}
	return update.Get(ctx, &text)
}

func (p *temporalPeer) Submit(ctx context.Context, tasks []task) error {
	return concurrently(len(tasks), 64, func(i int) error {
		_, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queueOfBacklog}, taskWorkflow, tasks[i])
		return err
	})
}

func (p *temporalPeer) Close() error {
	for _, w := range p.workers {
		w.Stop()
	}
	if p.client != nil {
		p.client.Close()
	}
	return stopProgram(p.server) // the backlog goes with it
}

// temporalProgram returns the server's program, which the Go module of its command line builds.
func temporalProgram(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "toolfleet-peers", "temporal-"+temporalVersion)
	program := filepath.Join(dir, "temporal")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	install := exec.CommandContext(ctx, "go", "install", "github.com/temporalio/cli/cmd/temporal@"+temporalVersion)
	install.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go install temporal: %w: %s", err, out)
	}
	return program, nil
}
