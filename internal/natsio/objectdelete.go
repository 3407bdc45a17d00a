package natsio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// deleteParallel is how many objects are removed concurrently.
const deleteParallel = 16

// DeleteObjects removes objects that have no readers left, in no order, and their records in the
// object store. A missing object is no error, and an object that is stored meanwhile stays. What
// was cut short is completed by doing it again. That store's own Delete stores a mark, which
// replaces what was put meanwhile: its parts stay. A full store has no room for one.
func DeleteObjects(ctx context.Context, js jetstream.JetStream, bucket string, names ...string) error {
	infos := make([]*jetstream.ObjectInfo, len(names))
	for i, name := range names {
		infos[i] = &jetstream.ObjectInfo{ObjectMeta: jetstream.ObjectMeta{Name: name}}
	}
	return DeleteTheseObjects(ctx, js, bucket, infos...)
}

// DeleteTheseObjects is [DeleteObjects] for objects as they were listed: an object that was stored
// again since stays.
func DeleteTheseObjects(ctx context.Context, js jetstream.JetStream, bucket string, infos ...*jetstream.ObjectInfo) error {
	return deleteObjects(ctx, js, bucket, infos, deleteObject)
}

func deleteObjects(ctx context.Context, js jetstream.JetStream, bucket string, infos []*jetstream.ObjectInfo,
	remove func(context.Context, jetstream.Stream, string, *jetstream.ObjectInfo) error,
) error {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if err != nil {
		return fmt.Errorf("open object store %s: %w", bucket, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deleteParallel)
	for _, info := range infos {
		group.Go(func() error {
			if err := remove(ctx, stream, bucket, info); err != nil {
				return fmt.Errorf("delete object %s: %w", info.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// deleteObject deletes an object by its name, and its NUID if that is known.
func deleteObject(ctx context.Context, stream jetstream.Stream, bucket string, listed *jetstream.ObjectInfo) error {
	subject := metaSubject(bucket, listed.Name)
	info, seq, err := lastMeta(ctx, stream, subject)
	if err != nil || seq == 0 || listed.NUID != "" && listed.NUID != info.NUID {
		return err
	}
	if err := purgeChunks(ctx, stream, info); err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq+1))
}

func chunkSubject(bucket, nuid string) string { return "$O." + bucket + ".C." + nuid }

// purgeChunks removes the chunks of an object that has no name any more.
func purgeChunks(ctx context.Context, stream jetstream.Stream, info *jetstream.ObjectInfo) error {
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(info.Bucket, info.NUID))); err != nil {
		return fmt.Errorf("purge what object %s was: %w", info.Name, err)
	}
	return nil
}

// Objects that nothing names
//
// An object is several messages: its chunks, and then the record that names them. A writer that is
// lost in between leaves chunks. A sweep of old objects removes the record first, on the condition
// that the object was not renewed, and then the chunks. What either of them leaves, [SweepChunks]
// removes.

// DeleteOldObjects is [DeleteTheseObjects] that also leaves objects that were renewed since. What
// it leaves when it is cut short, [SweepChunks] removes.
func DeleteOldObjects(ctx context.Context, js jetstream.JetStream, bucket string, infos ...*jetstream.ObjectInfo) error {
	return deleteObjects(ctx, js, bucket, infos, deleteOldObject)
}

// deleteOldObject deletes the record first: after that the object cannot be renewed.
func deleteOldObject(ctx context.Context, stream jetstream.Stream, bucket string, listed *jetstream.ObjectInfo) error {
	subject := metaSubject(bucket, listed.Name)
	now, seq, err := lastMeta(ctx, stream, subject)
	if err != nil || seq == 0 || now.NUID != listed.NUID || !now.ModTime.Equal(listed.ModTime) {
		return err
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq+1)); err != nil {
		return err
	}
	now, seq, err = lastMeta(ctx, stream, subject)
	if err != nil || seq > 0 && now.NUID == listed.NUID { // renewed since it was read
		return err
	}
	return purgeChunks(ctx, stream, listed)
}

// RenewObject has an object count as stored now, unless it is young. The error wraps
// [jetstream.ErrObjectNotFound] if there is none, or none of its chunks.
func RenewObject(ctx context.Context, js jetstream.JetStream, bucket, name string, young time.Duration) error {
	stream, err := Open(ctx, js.Stream, ObjectStream(bucket))
	if err != nil {
		return fmt.Errorf("open object store %s: %w", bucket, err)
	}
	for again := 0; ; again++ {
		err, wait := renewObject(ctx, js, stream, metaSubject(bucket, name), young), metaConflictPause
		switch { // in a cluster the server that answers may not know the object yet
		case errors.Is(err, jetstream.ErrObjectNotFound) && stream.CachedInfo().Config.Replicas > 1 && again < maxLookups:
			wait = pause.Retry
		case !Overtaken(err):
			return err
		}
		if !pause.For(ctx, wait) {
			return err
		}
	}
}

func renewObject(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, subject string, young time.Duration) error {
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("renew %s: %w", subject, jetstream.ErrObjectNotFound)
	}
	if err != nil || time.Since(msg.Time) < young {
		return err
	}
	if err := checkObject(ctx, stream, msg.Data); err != nil {
		return err
	}
	_, err = js.PublishMsg(ctx, &nats.Msg{
		Subject: subject, Data: msg.Data, Header: nats.Header{jetstream.MsgRollup: []string{jetstream.MsgRollupSubject}},
	}, jetstream.WithExpectLastSequencePerSubject(msg.Sequence))
	return err
}

// checkObject finds out whether an object is there, by its record.
func checkObject(ctx context.Context, stream jetstream.Stream, record []byte) error {
	info := &jetstream.ObjectInfo{}
	err := json.Unmarshal(record, info)
	if err == nil && !info.Deleted && info.Chunks > 0 {
		_, err = stream.GetLastMsgForSubject(ctx, chunkSubject(info.Bucket, info.NUID))
	}
	if info.Deleted || errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("object %s: %w", info.Name, jetstream.ErrObjectNotFound)
	}
	return err
}

// orphanAge is how old the last chunk of an object is at least that [SweepChunks] removes.
var orphanAge = time.Hour //nolint:gochecknoglobals // shorter in a test

// SweepChunks removes chunks that no record names: their writer was lost, or their removal was cut
// short. It returns of how many objects these were.
func SweepChunks(ctx context.Context, js jetstream.JetStream, bucket string) (int, error) {
	return sweepChunks(ctx, js, bucket, time.Now().Add(-orphanAge))
}

func sweepChunks(ctx context.Context, js jetstream.JetStream, bucket string, before time.Time) (n int, err error) {
	stream, err := js.Stream(ctx, ObjectStream(bucket))
	if err != nil {
		return 0, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	chunks, err := stream.Info(ctx, jetstream.WithSubjectFilter(chunkSubject(bucket, ">"))) // before the records: a chunk that is stored from now on is young
	if err != nil {
		return 0, fmt.Errorf("list chunks of object store %s: %w", bucket, err)
	}
	records, err := ListObjects(ctx, js, bucket, func(string) bool { return true })
	if err != nil {
		return 0, err
	}
	orphans := chunks.State.Subjects
	for _, record := range records {
		delete(orphans, chunkSubject(bucket, record.NUID))
	}
	for subject := range orphans {
		if strings.Count(subject, ".") > strings.Count(chunkSubject(bucket, "TENANT.ID"), ".") { // a mark of what a tenant stores
			continue
		}
		last, err := stream.GetLastMsgForSubject(ctx, subject)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			continue
		case err == nil && last.Time.After(before):
			continue
		case err == nil:
			err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(last.Sequence+1))
		}
		if err != nil {
			return n, fmt.Errorf("remove chunks of object store %s: %w", bucket, err)
		}
		n++
	}
	return n, nil
}
