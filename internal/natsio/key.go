package natsio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// MakeBucket makes a bucket with the replicas of a stream, unless another process was faster, as
// CreateKeyValue does but for direct reads and the numbers of revisions. more changes the rest of
// its settings.
func MakeBucket(ctx context.Context, js jetstream.JetStream, bucket, replicasOf string, maxBytes int64, more func(*jetstream.StreamConfig)) error {
	like, err := js.Stream(ctx, replicasOf)
	if err != nil {
		return err
	}
	replicas := like.CachedInfo().Config.Replicas
	config := jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Replicas: replicas, MaxBytes: maxBytes,
		MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Discard: jetstream.DiscardNew, AllowRollup: true, FirstSeq: SequenceNow(), // processes remember revisions
		AllowDirect: replicas == 1, // a server that is one of several answers from its past
	}
	more(&config)
	if _, err = js.CreateStream(ctx, config); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	return err
}

// ReadKey returns the value of a key and its revision; nil and 0 if the key was never set, or never
// can be.
func ReadKey(ctx context.Context, bucket jetstream.KeyValue, key string) (value []byte, revision uint64, err error) {
	entry, err := bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s of %s: %w", key, bucket.Bucket(), err)
	}
	return entry.Value(), entry.Revision(), nil
}

// ChangeKey replaces the value of a key, on the condition that no other process has changed it
// since it was read. change makes the new value of the stored one, which is nil without any; nil
// leaves the key as it is. It may be called several times.
func ChangeKey(ctx context.Context, bucket jetstream.KeyValue, key string, change func(stored []byte) ([]byte, error)) error {
	for {
		stored, revision, err := ReadKey(ctx, bucket, key)
		if err != nil {
			return err
		}
		value, err := change(stored)
		if err != nil || value == nil {
			return err
		}
		err = UntilKnown(ctx, func(ctx context.Context) (err error) {
			if revision == 0 {
				_, err = bucket.Create(ctx, key, value)
			} else {
				_, err = bucket.Update(ctx, key, value, revision)
			}
			return err
		}, func(ctx context.Context) (bool, error) {
			now, _, err := ReadKey(ctx, bucket, key)
			return bytes.Equal(now, value), err
		})
		if OutcomeOf(err) != Conflict {
			return err
		}
	}
}

// FollowKey calls read whenever a message comes on the subject of a key, until ctx ends. Messages
// can be lost, so it also calls read after a first pause, and after each pause that read returns.
// warn gets the first of several errors. The goroutine of the caller calls both.
func FollowKey(
	ctx context.Context, nc *nats.Conn, subject string, first time.Duration, read func(changed bool) (next time.Duration, err error), warn func(error),
) {
	hint := make(chan struct{}, 1)
	subscription, err := nc.Subscribe(subject, func(*nats.Msg) {
		select {
		case hint <- struct{}{}:
		default:
		}
	})
	if err == nil {
		defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	}
	timer := time.NewTimer(first)
	defer timer.Stop()
	for failing := false; ; {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-hint:
			changed = true
		case <-timer.C:
		}
		next, err := read(changed)
		if err != nil && !failing && ctx.Err() == nil {
			warn(err)
		}
		failing = err != nil
		timer.Reset(next)
	}
}
