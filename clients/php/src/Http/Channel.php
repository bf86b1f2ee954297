<?php

declare(strict_types=1);

namespace Tickr\Http;

use Tickr\ConnectionFailed;

/**
 * One connection, kept open, on which one request is under way at a time.
 *
 * No call blocks: `advance` does what can be done now, and `reading` and `writing` name the streams to wait for. So one
 * process waits for jobs, beats and finishes at the same time.
 */
final class Channel
{
    private const CONNECT_SECONDS = 5.0;

    /** @var list<resource> Connections of a parent process. To close a TLS stream here would end that of the parent. */
    private static array $inherited = [];

    /** @var resource|null */
    private $socket = null;
    private int $place = 0;
    /** The place that the newest request must go to; null for the current one. */
    private ?int $wanted = null;
    private int $pid = 0;
    private string $state = 'idle';
    private bool $reused = false;
    private ?Request $request = null;
    private string $out = '';
    private string $in = '';
    private float $deadline = 0.0;
    private float $connectDeadline = 0.0;
    /** When the newest request was sent, the last time. */
    private float $sent = 0.0;
    /** How often it was sent. */
    private int $sends = 0;

    /** @param \Closure(): ?string $token returns the token, so that no dump of this object shows it */
    public function __construct(private readonly Addresses $addresses, private readonly \Closure $token)
    {
    }

    public function isBusy(): bool
    {
        return $this->request !== null;
    }

    /**
     * Begin a request. The connection to its address is used again when there is one.
     *
     * @param int|null $place the place of the address; null for the current one
     */
    public function begin(Request $request, ?int $place = null): void
    {
        $this->leaveToParent();
        if ($this->request !== null) {
            // An exception of the program, for example of a signal handler, has cut off the request before. Its answer
            // must not be taken for that of this one.
            $this->close();
        }
        $this->request = $request;
        $this->wanted = $place;
        $this->deadline = self::now() + $request->timeout;
        $this->sends = 0;
        $wanted = $place ?? $this->addresses->current();
        if ($this->socket !== null && ($this->place !== $wanted || self::isAtEnd($this->socket))) {
            $this->close();
        }
        $this->reused = $this->socket !== null;
        $this->request = $request;
        $this->reused ? $this->startSending() : $this->connect();
    }

    /**
     * Go on with the request.
     *
     * @return Response|null null while the answer is not complete
     *
     * @throws ConnectionFailed when there will be no answer; the next request goes to the next address
     */
    public function advance(): ?Response
    {
        if ($this->request === null) {
            return null;
        }
        try {
            $now = self::now();
            if ($now >= $this->deadline) {
                throw new ConnectionFailed('no answer within ' . round($this->request->timeout, 1) . ' s');
            }
            if (\in_array($this->state, ['connecting', 'greeting'], true) && $now >= $this->connectDeadline) {
                throw new ConnectionFailed('no connection within ' . self::CONNECT_SECONDS . ' s');
            }
            return $this->step();
        } catch (ConnectionFailed $failed) {
            $request = $this->request;
            $silent = $this->reused && $this->in === '' && self::now() < $this->deadline;
            $this->close();
            if ($silent) {
                // The server may close a kept connection at any time. That says nothing about the server.
                $this->request = $request;
                $this->reused = false;
                try {
                    $this->connect();
                    return null;
                } catch (ConnectionFailed $again) {
                    $failed = $again;
                    $this->close();
                }
            }
            $this->addresses->failed($this->place);
            throw $failed;
        }
    }

    /** Give the request up and close the connection. */
    public function close(): void
    {
        $this->leaveToParent();
        // A signal handler may throw between any two steps, so a closed socket is never left in its place.
        [$socket, $this->socket] = [$this->socket, null];
        $this->request = null;
        $this->state = 'idle';
        $this->out = $this->in = '';
        if ($socket !== null) {
            // The processes of handlers have copies of the socket, so closing this one would not end the connection.
            @stream_socket_shutdown($socket, STREAM_SHUT_RDWR);
            @fclose($socket);
        }
    }

    /** The place of the address to which the newest request was sent. */
    public function place(): int
    {
        return $this->place;
    }

    /** @return resource|null the stream that must become readable before `advance` can do more */
    public function reading()
    {
        return $this->request !== null && \in_array($this->state, ['greeting', 'sending', 'receiving'], true)
            ? $this->socket : null;
    }

    /** @return resource|null the stream that must become writable before `advance` can do more */
    public function writing()
    {
        return $this->request !== null && \in_array($this->state, ['connecting', 'sending'], true)
            ? $this->socket : null;
    }

    /** The moment at which `advance` must be called at the latest, on the clock of `now`. */
    public function due(): float
    {
        if ($this->request === null) {
            return INF;
        }
        $opening = \in_array($this->state, ['connecting', 'greeting'], true);
        return $opening ? min($this->deadline, $this->connectDeadline) : $this->deadline;
    }

    /** Wait until the request is answered. */
    public function call(Request $request, ?int $place = null): Response
    {
        $this->begin($request, $place);
        while (true) {
            $response = $this->advance();
            if ($response !== null) {
                return $response;
            }
            if ($this->request !== $request) {
                throw new ConnectionFailed('another call, of a signal handler of the program, has cut this one off');
            }
            $read = array_filter([$this->reading()]);
            $write = array_filter([$this->writing()]);
            self::select($read, $write, $this->due() - self::now());
        }
    }

    /** When the newest request was sent, on the clock of `now`. It counts anew when its connection was replaced. */
    public function sentAt(): float
    {
        return $this->sent;
    }

    /** How often the newest request was sent: twice when its connection was replaced. */
    public function sends(): int
    {
        return $this->sends;
    }

    /** Seconds on a clock that never goes back. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    /**
     * Wait for streams, at most so many seconds. A signal ends the wait.
     *
     * @param array<resource> $read
     * @param array<resource> $write
     */
    public static function select(array &$read, array &$write, float $seconds): int
    {
        $seconds = max(0.0, min($seconds, 3600.0));
        if ($read === [] && $write === []) {
            usleep((int) ($seconds * 1e6));
            return 0;
        }
        $except = null;
        $whole = (int) $seconds;
        $count = @stream_select($read, $write, $except, $whole, (int) (($seconds - $whole) * 1e6));
        if ($count === false) {
            $read = $write = [];
            return -1;
        }
        return $count;
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['state' => $this->state];
    }

    public function __serialize(): array
    {
        throw new \LogicException('a connection cannot be serialized');
    }

    private function connect(): void
    {
        $this->place = $this->wanted ?? $this->addresses->current();
        $address = $this->addresses->at($this->place);
        $context = stream_context_create(['ssl' => ['peer_name' => trim($address['host'], '[]')]]);
        $target = 'tcp://' . $address['host'] . ':' . $address['port'];
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        $this->connectDeadline = self::now() + self::CONNECT_SECONDS;
        $socket = @stream_socket_client($target, $errno, $error, self::CONNECT_SECONDS, $flags, $context);
        $this->pid = (int) getmypid();
        if ($socket === false) {
            $this->request = null;
            $this->addresses->failed($this->place);
            throw new ConnectionFailed("cannot connect to {$address['host']}:{$address['port']}: $error");
        }
        stream_set_blocking($socket, false);
        stream_set_read_buffer($socket, 0);
        $this->socket = $socket;
        $this->state = 'connecting';
    }

    private function startSending(): void
    {
        $request = $this->request;
        $address = $this->addresses->at($this->place);
        $standard = $address['port'] === ($address['scheme'] === 'https' ? 443 : 80);
        $lines = [
            "$request->method {$address['path']}$request->path HTTP/1.1",
            'Host: ' . $address['host'] . ($standard ? '' : ':' . $address['port']),
            'Accept: application/json',
            'User-Agent: tickr-php/0.1.0',
        ];
        $token = ($this->token)();
        if ($token !== null && $token !== '') {
            $lines[] = "Authorization: Bearer $token";
        }
        foreach ($request->headers as $name => $value) {
            $lines[] = "$name: " . ($value instanceof \Closure ? $value() : $value);
        }
        $this->sent = self::now();
        $this->sends++;
        $body = $request->text();
        if ($body !== null) {
            $lines[] = 'Content-Type: application/json';
        }
        if ($body !== null || $request->method !== 'GET') {
            $lines[] = 'Content-Length: ' . \strlen($body ?? '');
        }
        $this->out = implode("\r\n", $lines) . "\r\n\r\n" . ($body ?? '');
        $this->in = '';
        $this->state = 'sending';
    }

    private function step(): ?Response
    {
        $address = $this->addresses->at($this->place);
        if ($this->state === 'connecting') {
            $read = [];
            $write = [$this->socket];
            if (self::select($read, $write, 0.0) < 1) {
                return null;
            }
            if (@stream_socket_get_name($this->socket, true) === false) {
                throw new ConnectionFailed("cannot connect to {$address['host']}:{$address['port']}");
            }
            if ($address['scheme'] === 'https') {
                $this->state = 'greeting';
            } else {
                $this->startSending();
            }
        }
        if ($this->state === 'greeting') {
            $done = @stream_socket_enable_crypto($this->socket, true, STREAM_CRYPTO_METHOD_TLS_CLIENT);
            if ($done === 0) {
                return null;
            }
            if ($done === false) {
                throw new ConnectionFailed("the TLS connection to {$address['host']}:{$address['port']} failed");
            }
            $this->startSending();
        }
        if ($this->state === 'sending') {
            $this->write();
        }
        // A server may answer before it has read the whole request, for example 413.
        return $this->read();
    }

    private function write(): void
    {
        while ($this->out !== '') {
            $written = @fwrite($this->socket, $this->out);
            if ($written === false) {
                throw new ConnectionFailed('the connection broke while the request was sent');
            }
            if ($written === 0) {
                return;
            }
            $this->out = substr($this->out, $written);
        }
        $this->state = 'receiving';
    }

    private function read(): ?Response
    {
        while (true) {
            $chunk = @fread($this->socket, 65536);
            if ($chunk === false || $chunk === '') {
                break;
            }
            $this->in .= $chunk;
        }
        $ended = feof($this->socket);
        $parsed = self::parse($this->in, $ended);
        if ($parsed === null) {
            if ($ended) {
                throw new ConnectionFailed('the connection ended before the answer was complete');
            }
            return null;
        }
        [$response, $keep] = $parsed;
        if (!$keep || $ended || $this->out !== '') {
            $this->close();
        }
        $this->request = null;
        $this->state = 'idle';
        $this->in = '';
        return $response;
    }

    /**
     * Read an answer from the bytes that have come.
     *
     * @return array{Response, bool}|null the answer and whether the connection stays open; null when it is not complete
     */
    private static function parse(string $bytes, bool $ended): ?array
    {
        do {
            $end = strpos($bytes, "\r\n\r\n");
            if ($end === false) {
                return null;
            }
            $lines = explode("\r\n", substr($bytes, 0, $end));
            $bytes = substr($bytes, $end + 4);
            if (preg_match('~^HTTP/1\.([01]) (\d{3})~', array_shift($lines), $match) !== 1) {
                throw new ConnectionFailed('the answer is not HTTP');
            }
            $status = (int) $match[2];
        } while ($status >= 100 && $status < 200);
        $headers = [];
        foreach ($lines as $line) {
            [$name, $value] = explode(':', $line, 2) + [1 => ''];
            $headers[strtolower(trim($name))] = trim($value);
        }
        $keep = $match[1] === '1' && strtolower($headers['connection'] ?? '') !== 'close';
        if ($status === 204 || $status === 304) {
            return [new Response($status, $headers, ''), $keep];
        }
        if (strtolower($headers['transfer-encoding'] ?? '') === 'chunked') {
            $body = self::unchunk($bytes);
            return $body === null ? null : [new Response($status, $headers, $body), $keep];
        }
        if (isset($headers['content-length'])) {
            $length = (int) $headers['content-length'];
            if (\strlen($bytes) < $length) {
                return null;
            }
            return [new Response($status, $headers, substr($bytes, 0, $length)), $keep];
        }
        return $ended ? [new Response($status, $headers, $bytes), false] : null;
    }

    private static function unchunk(string $bytes): ?string
    {
        $body = '';
        $at = 0;
        while (true) {
            $end = strpos($bytes, "\r\n", $at);
            if ($end === false) {
                return null;
            }
            $size = hexdec(trim(explode(';', substr($bytes, $at, $end - $at))[0]));
            $at = $end + 2;
            if ($size === 0) {
                $tail = substr($bytes, $at);
                return str_starts_with($tail, "\r\n") || str_contains($tail, "\r\n\r\n") ? $body : null;
            }
            if (\strlen($bytes) < $at + $size + 2) {
                return null;
            }
            $body .= substr($bytes, $at, (int) $size);
            $at += $size + 2;
        }
    }

    /** @param resource $socket */
    private static function isAtEnd($socket): bool
    {
        $read = [$socket];
        $write = [];
        // Nothing is under way on an idle connection, so a byte or an end means that it cannot be used again.
        return self::select($read, $write, 0.0) > 0;
    }

    /** Leave a connection to the parent process after a fork, without closing it. */
    private function leaveToParent(): void
    {
        if ($this->socket !== null && $this->pid !== getmypid()) {
            self::$inherited[] = $this->socket;
            $this->socket = null;
            $this->request = null;
            $this->state = 'idle';
            $this->out = $this->in = '';
        }
    }
}
