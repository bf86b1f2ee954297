<?php

declare(strict_types=1);

use Illuminate\Foundation\PackageManifest;

// A new application of Laravel has this file already, and needs nothing of it for tickr.

error_reporting(E_ALL & ~E_DEPRECATED);
$root = dirname(__DIR__);
is_file("$root/vendor/autoload.php") ? require "$root/vendor/autoload.php" : require 'Illuminate/autoload.php';
require_once "$root/../../clients/php/autoload.php";
spl_autoload_register(static function (string $class) use ($root): void {
    $file = "$root/app/" . strtr(substr($class, 4), '\\', '/') . '.php';
    if (str_starts_with($class, 'App\\') && is_file($file)) {
        require $file;
    }
});

$app = new Illuminate\Foundation\Application($root);
$app->useStoragePath(getenv('SHOP_DIR'));
foreach (['SERVICES', 'PACKAGES'] as $cache) {
    $_ENV["APP_{$cache}_CACHE"] = $_SERVER["APP_{$cache}_CACHE"] = getenv('SHOP_DIR') . "/$cache.php";
}
$app->singleton(Illuminate\Contracts\Console\Kernel::class, App\Console\Kernel::class);
$app->singleton(Illuminate\Contracts\Debug\ExceptionHandler::class, Illuminate\Foundation\Exceptions\Handler::class);
if (!is_file("$root/vendor/autoload.php")) {
    // Without Composer there are no packages to discover.
    $app->instance(PackageManifest::class, new class extends PackageManifest {
        public function __construct()
        {
        }

        public function providers()
        {
            return [];
        }

        public function aliases()
        {
            return [];
        }
    });
}
return $app;
