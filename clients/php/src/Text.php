<?php

declare(strict_types=1);

namespace Tickr;

/**
 * Texts within the bounds of the API.
 *
 * @internal
 */
final class Text
{
    /** Make valid UTF-8 of bytes of any origin. */
    public static function clean(string $text): string
    {
        return preg_match('//u', $text) === 1 ? $text : (string) json_decode(Json::encodeLossy($text));
    }

    /** Keep the first characters, at most so many. */
    public static function first(string $text, int $characters): string
    {
        $text = self::clean($text);
        if (\strlen($text) <= $characters) {
            return $text;
        }
        $kept = (string) iconv_substr($text, 0, $characters, 'UTF-8');
        return $kept === $text ? $text : (string) iconv_substr($text, 0, $characters - 1, 'UTF-8') . '…';
    }

    /** The newest bytes of a log, at most so many, cut between lines where that is possible. */
    public static function newest(string $log, int $bytes): string
    {
        if (\strlen($log) <= $bytes) {
            return $log;
        }
        $kept = substr($log, -$bytes);
        $line = strpos($kept, "\n");
        if ($line !== false && $line < \strlen($kept) - 1) {
            return substr($kept, $line + 1);
        }
        return (string) preg_replace('/^[\x80-\xbf]+/', '', $kept);
    }

    /** The text of an error, as an attempt keeps it. */
    public static function error(string $text): string
    {
        $text = trim($text);
        return self::first($text === '' ? 'no reason was given' : $text, 2000);
    }
}
