package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
)

// asynqPeer is asynq on a Redis server of its own with an append-only file, as Redis' documents
// recommend for data that must not be lost. It has no order by key: its queues are shared by all
// workers. Who sent a task learns of its end by polling; here, in the same process, from the worker.
type asynqPeer struct {
	*work

	server *exec.Cmd
	client *asynq.Client
	worker *asynq.Server

	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func (p *asynqPeer) Start(ctx context.Context, dir string, slots int) error {
	p.waiting = map[string]chan struct{}{}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("Redis is not installed: apt-get install redis-server")
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	p.server = exec.Command(program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes")
	if err := startProgram(p.server, filepath.Join(dir, "redis.log")); err != nil {
		return err
	}
	redis := asynq.RedisClientOpt{Addr: "127.0.0.1:" + strconv.Itoa(port)}
	p.client = asynq.NewClient(redis)
	if err := await(ctx, p.client.Ping); err != nil {
		return err
	}
	p.worker = asynq.NewServer(redis, asynq.Config{Concurrency: slots, Queues: map[string]int{"default": 1, "other": 1}, LogLevel: asynq.ErrorLevel})
	return p.worker.Start(asynq.HandlerFunc(p.handle))
}

func (p *asynqPeer) handle(ctx context.Context, t *asynq.Task) error {
	var given task
	if err := json.Unmarshal(t.Payload(), &given); err != nil {
		return err
	}
	text, err := p.run(ctx, given)
	if err != nil {
		return err
	}
	if _, err := t.ResultWriter().Write([]byte(text)); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if done := p.waiting[t.ResultWriter().TaskID()]; done != nil {
		close(done)
		delete(p.waiting, t.ResultWriter().TaskID())
	}
	return nil
}

func (p *asynqPeer) enqueue(ctx context.Context, t task, id string) error {
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	options := []asynq.Option{asynq.Retention(time.Hour)} // or the result is removed with the task
	if id != "" {
		options = append(options, asynq.TaskID(id))
	}
	if t.Key == "other" {
		options = append(options, asynq.Queue("other"))
	}
	_, err = p.client.EnqueueContext(ctx, asynq.NewTask("task", body), options...)
	return err
}

func (p *asynqPeer) Do(ctx context.Context, t task) error {
	id, done := uuid.NewString(), make(chan struct{})
	p.mu.Lock()
	p.waiting[id] = done
	p.mu.Unlock()
	if err := p.enqueue(ctx, t, id); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *asynqPeer) Submit(ctx context.Context, tasks []task) error {
	return concurrently(len(tasks), 64, func(i int) error { return p.enqueue(ctx, tasks[i], "") })
}

func (p *asynqPeer) Close() error {
	if p.worker != nil {
		p.worker.Stop()
		p.worker.Shutdown()
	}
	if p.client != nil {
		_ = p.client.Close() // the server goes, too
	}
	return stopProgram(p.server)
}
