package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverPeer is River on a PostgreSQL server of its own with default settings. Tasks with keys go to
// queues of one worker each, which keeps them in order as long as one process works on a queue;
// sequences across processes are of the version that is paid for.
type riverPeer struct {
	*work

	server *exec.Cmd
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	stop   func()

	mu      sync.Mutex
	waiting map[int64]chan struct{}
	early   map[int64]bool // completed before somebody waited
}

// riverTask is a task as River stores it.
type riverTask struct{ task }

// Kind implements [river.JobArgs].
func (riverTask) Kind() string { return "task" }

type riverWorker struct {
	river.WorkerDefaults[riverTask]

	peer *riverPeer
}

// Work implements [river.Worker].
func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverTask]) error {
	text, err := w.peer.run(ctx, job.Args.task)
	if err != nil {
		return err
	}
	return river.RecordOutput(ctx, text)
}

func (p *riverPeer) Start(ctx context.Context, dir string, slots int) error {
	p.waiting, p.early = map[int64]chan struct{}{}, map[int64]bool{}
	url, server, err := startPostgres(ctx, dir)
	if err != nil {
		return err
	}
	p.server = server
	if p.pool, err = pgxpool.New(ctx, url); err != nil {
		return err
	}
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{peer: p})
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}, "busy": {MaxWorkers: 1}, "other": {MaxWorkers: 1}}
	for i := range 64 {
		queues["key-"+strconv.Itoa(i)] = river.QueueConfig{MaxWorkers: 1}
	}
	if p.client, err = river.NewClient(driver, &river.Config{Queues: queues, Workers: workers}); err != nil {
		return err
	}
	events, cancel := p.client.Subscribe(river.EventKindJobCompleted)
	p.stop = cancel
	go func() {
		for e := range events {
			p.completed(e.Job.ID)
		}
	}()
	return p.client.Start(context.WithoutCancel(ctx))
}

func (p *riverPeer) completed(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done := p.waiting[id]; done != nil {
		close(done)
		delete(p.waiting, id)
		return
	}
	p.early[id] = true
}

func (p *riverPeer) options(t task) *river.InsertOpts {
	if t.Key == "" {
		return nil
	}
	return &river.InsertOpts{Queue: t.Key}
}

func (p *riverPeer) Do(ctx context.Context, t task) error {
	inserted, err := p.client.Insert(ctx, riverTask{t}, p.options(t))
	if err != nil {
		return err
	}
	id, done := inserted.Job.ID, make(chan struct{})
	p.mu.Lock()
	if p.early[id] {
		close(done)
		delete(p.early, id)
	} else {
		p.waiting[id] = done
	}
	p.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *riverPeer) Submit(ctx context.Context, tasks []task) error {
	for len(tasks) > 0 {
		n := min(len(tasks), 5000)
		many := make([]river.InsertManyParams, n)
		for i, t := range tasks[:n] {
			many[i] = river.InsertManyParams{Args: riverTask{t}, InsertOpts: p.options(t)}
		}
		if _, err := p.client.InsertManyFast(ctx, many); err != nil {
			return err
		}
		tasks = tasks[n:]
	}
	return nil
}

func (p *riverPeer) Close() error {
	if p.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_ = p.client.StopAndCancel(ctx) // the backlog goes with the server
		cancel()
		p.stop()
	}
	if p.pool != nil {
		p.pool.Close()
	}
	return stopProgram(p.server)
}

// startPostgres makes a database cluster with default settings in a directory, and starts it. As
// root it runs as user postgres, because the server refuses root.
func startPostgres(ctx context.Context, dir string) (url string, server *exec.Cmd, err error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return "", nil, errors.New("PostgreSQL is not installed: apt-get install postgresql")
	}
	bin, data := filepath.Dir(found[len(found)-1]), filepath.Join(dir, "data")
	as := func(program string, arguments ...string) *exec.Cmd {
		if os.Getuid() != 0 {
			return exec.Command(program, arguments...)
		}
		return exec.Command("setpriv", append([]string{"--reuid=postgres", "--regid=postgres", "--clear-groups", program}, arguments...)...)
	}
	if os.Getuid() == 0 {
		if out, err := exec.CommandContext(ctx, "chown", "postgres:postgres", dir).CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("chown: %w: %s", err, out)
		}
	}
	if out, err := as(filepath.Join(bin, "initdb"), "-D", data, "-U", "peers", "--auth=trust").CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	server = as(filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", dir)
	if err := startProgram(server, filepath.Join(dir, "postgres.log")); err != nil {
		return "", nil, err
	}
	url = fmt.Sprintf("postgres://peers@127.0.0.1:%d/postgres", port)
	return url, server, await(ctx, func() error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}
