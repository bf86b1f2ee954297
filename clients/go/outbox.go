package tickr

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	maxPayloadBytes = 1 << 20
	maxAhead        = 366 * 24 * time.Hour
)

// Execer is a *sql.Tx, or another transaction that executes statements.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// OutboxRow is an INSERT for the outbox.
type OutboxRow struct {
	// ID is the id that the job will have.
	ID string
	// Query is the statement, with ? for each value.
	Query string
	Args  []any
}

// EnqueueTx enqueues a job in a transaction of yours: it exists exactly if the transaction is committed. It returns the
// id that the job will have. The driver is one for MySQL.
//
// The job starts about a tenth of a second after the COMMIT, the first one after a quiet time within about a second,
// and at once after Client.Nudge. tickr checks kind and payload when it moves the row; a row that is wrong is shown by
// `tickr outbox rejected`. When the COMMIT was not answered, run the transaction again with NewOutboxRow and the same
// id.
func EnqueueTx(ctx context.Context, tx Execer, job Job) (string, error) {
	if _, isPool := tx.(*sql.DB); isPool {
		// Each statement of a pool may use another connection, so it would be in no transaction.
		return "", errors.New("tickr: EnqueueTx needs a transaction, not a *sql.DB")
	}
	row, err := NewOutboxRow("", "", job)
	if err != nil {
		return "", err
	}
	_, err = tx.ExecContext(ctx, row.Query, row.Args...)
	return row.ID, err
}

var tableName = regexp.MustCompile(`^[A-Za-z0-9_$]+(\.[A-Za-z0-9_$]+)?$`)

// NewOutboxRow returns the INSERT that enqueues a job, for another table than tickr_outbox or with an id of yours, a
// UUIDv7. Empty texts stand for the usual table and a new id.
func NewOutboxRow(table, id string, job Job) (*OutboxRow, error) {
	if table == "" {
		table = "tickr_outbox"
	}
	if !tableName.MatchString(table) {
		return nil, fmt.Errorf("tickr: %q is no name of a table", table)
	}
	if id == "" {
		id = NewID()
	}
	bytes, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(bytes) != 16 || bytes[6]>>4 != 7 {
		return nil, fmt.Errorf("tickr: %q is no UUIDv7", id)
	}
	if time.Until(job.Options.ExecuteAt) > maxAhead {
		return nil, errors.New("tickr: ExecuteAt is more than 366 days ahead")
	}
	if !job.Options.ExecuteAt.IsZero() && job.Options.Delay != 0 {
		// The server would reject the row after the COMMIT, and there would be no job.
		return nil, errors.New("tickr: give ExecuteAt or Delay, not both")
	}
	fields, err := job.fields()
	if err != nil {
		return nil, err
	}
	payload, err := encode(fields["payload"])
	if err != nil {
		return nil, err
	}
	if len(payload) > maxPayloadBytes {
		return nil, fmt.Errorf("tickr: the payload has %d bytes, and at most 1 MiB is possible", len(payload))
	}
	var queue, executeAt, options any
	if job.Options.Queue != "" {
		queue = job.Options.Queue
	}
	if !job.Options.ExecuteAt.IsZero() {
		// As text in UTC: a driver would write a time.Time in its own time zone.
		executeAt = roundedUp(job.Options.ExecuteAt).UTC().Format("2006-01-02 15:04:05.000")
	}
	for _, column := range []string{"kind", "payload", "queue", "execute_at"} {
		delete(fields, column)
	}
	if len(fields) > 0 {
		text, err := encode(fields)
		if err != nil {
			return nil, err
		}
		options = string(text)
	}
	return &OutboxRow{
		ID:    id,
		Query: "INSERT INTO " + table + " (id, kind, payload, queue, execute_at, options) VALUES (?, ?, ?, ?, ?, ?)",
		Args:  []any{bytes, job.Kind, string(payload), queue, executeAt, options},
	}, nil
}

var (
	idLock    sync.Mutex
	idMs      int64
	idCounter uint16
)

// NewID makes a UUIDv7. The ids of one process sort in the order in which they were made, also within a millisecond:
// jobs with one order key run in the order of their ids.
func NewID() string {
	var bytes [16]byte
	mustRead(bytes[:])
	idLock.Lock()
	if now := time.Now().UnixMilli(); now > idMs {
		idMs = now
		// The upper half stays free, so that a millisecond has room for at least two thousand ids.
		idCounter = binary.BigEndian.Uint16(bytes[6:]) & 0x7ff
	} else if idCounter++; idCounter > 0xfff {
		idMs++
		idCounter = 0
	}
	ms, counter := idMs, idCounter
	idLock.Unlock()
	binary.BigEndian.PutUint16(bytes[0:], uint16(ms>>32))
	binary.BigEndian.PutUint32(bytes[2:], uint32(ms))
	binary.BigEndian.PutUint16(bytes[6:], 0x7000|counter)
	bytes[8] = 0x80 | bytes[8]&0x3f
	return hyphenated(bytes)
}

// randomID makes a UUIDv4.
func randomID() string {
	var bytes [16]byte
	mustRead(bytes[:])
	bytes[6] = 0x40 | bytes[6]&0x0f
	bytes[8] = 0x80 | bytes[8]&0x3f
	return hyphenated(bytes)
}

func mustRead(bytes []byte) {
	if _, err := rand.Read(bytes); err != nil {
		panic(fmt.Sprintf("tickr: the system gives no random numbers: %v", err))
	}
}

func hyphenated(bytes [16]byte) string {
	text := hex.EncodeToString(bytes[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
