<?php

declare(strict_types=1);

// Laravel 8 was written for PHP 8.0, so newer versions of PHP call parts of it deprecated.
error_reporting(E_ALL & ~E_DEPRECATED);
is_file(__DIR__ . '/../vendor/autoload.php') && require __DIR__ . '/../vendor/autoload.php';
require_once __DIR__ . '/../autoload.php';
spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Tickr\\Tests\\')) {
        $file = __DIR__ . '/' . strtr(substr($class, 12), '\\', '/') . '.php';
        is_file($file) && require $file;
    }
});
